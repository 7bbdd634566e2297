"""Servers that run for all tests, for programs that start and stop their own servers."""

from typing import ClassVar

from cdc_lake.demo.servers.stack import Stack


def running(stack: Stack) -> type[Stack]:
    """A class to replace `Stack`: started servers become `stack`, which keeps running when it is stopped.

    Its `calls` are the names of the methods that were called, in order.
    """

    class Running(Stack):
        calls: ClassVar[list[str]] = []

        def start(self, *, detach: bool, metastore: bool = False) -> None:
            assert not detach
            self.calls.append("start")
            self.folder = stack.folder

        def stop(self) -> None:
            self.calls.append("stop")

        def delete(self) -> None:
            self.calls.append("delete")

    return Running
