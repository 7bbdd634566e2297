"""Files on local disks, S3 and HDFS."""
