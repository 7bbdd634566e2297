"""Files on local disks, HDFS and object stores."""
