variable "name" {
  description = "Name of this deployment; the names of its resources begin with it."
  type        = string
  default     = "cdc-lake"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "Use 2 to 31 small letters, digits and hyphens, a letter first."
  }
}

variable "target" {
  description = "Where jobs run: `serverless` (EMR Serverless) or `ec2` (a cluster that is always on)."
  type        = string
  default     = "serverless"
  validation {
    condition     = contains(["serverless", "ec2"], var.target)
    error_message = "Write `serverless` or `ec2`."
  }
}

variable "region" {
  description = "The AWS region of everything here."
  type        = string
}

variable "tags" {
  description = "Tags of all resources, in addition to `Project`."
  type        = map(string)
  default     = {}
}

variable "lake_bucket" {
  description = "Name of the tables' bucket. Two more buckets add `-artifacts` and `-logs` to it."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,50}[a-z0-9]$", var.lake_bucket))
    error_message = "Use 3 to 52 small letters, digits and hyphens."
  }
}

variable "vpc_id" {
  description = "The VPC for the jobs, which can reach Kafka and the registry."
  type        = string
}

variable "subnet_ids" {
  description = "Its private subnets, which can reach S3, KMS, Glue, SSM and STS. A cluster uses the first."
  type        = list(string)
  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "Name one at least."
  }
}

variable "kafka_bootstrap_servers" {
  description = "host:port of the brokers, separated by commas."
  type        = string
}

variable "msk_cluster_arn" {
  description = "ARN of the MSK cluster, if jobs log in with IAM. Without it, no role may use MSK with IAM."
  type        = string
  default     = ""
}

variable "registry_type" {
  description = "`registry.type` of the settings."
  type        = string
  default     = "apicurio"
  validation {
    condition     = contains(["apicurio", "confluent", "ccompat", "glue"], var.registry_type)
    error_message = "Write `apicurio`, `confluent`, `ccompat` or `glue`."
  }
}

variable "registry_url" {
  description = "`registry.url` of the settings; `embedded` with the type `glue`."
  type        = string
}

variable "topic_prefix" {
  description = "`topic.prefix` of the connector: jobs may read topics that begin with it and a dot, and databases are named after it."
  type        = string
  default     = "pagila"
  validation {
    condition     = can(regex("^[a-z][a-z0-9_]*$", var.topic_prefix))
    error_message = "Glue's names have small letters, digits and `_`."
  }
}

variable "tables" {
  description = "Values of `--table` in scheduled runs: topics or globs."
  type        = list(string)
  default     = ["*"]
}

variable "models" {
  description = "Values of `--model` in scheduled runs of gold: names or globs."
  type        = list(string)
  default     = ["*"]
}

variable "hudi" {
  description = "Whether tables are in Hudi, whose writer deletes files itself: silver and gold may then delete data."
  type        = bool
  default     = false
}

variable "iceberg" {
  description = "Whether tables are in Iceberg, with Glue as their catalog: readers and maintenance then need Glue, too."
  type        = bool
  default     = false
}

variable "settings" {
  description = "More settings of cdc_lake, as YAML, without the keys of config.yml: `defaults: {deletes: {mode: hard}}`."
  type        = string
  default     = ""
}

variable "release_label" {
  description = "The EMR release."
  type        = string
  default     = "emr-7.13.0"
}

variable "artifacts_version" {
  description = "Folder with the jobs of scheduled runs, below s3://<lake bucket>-artifacts/cdc_lake."
  type        = string
  default     = "0.1.0"
}

variable "jars" {
  description = "Jars in its folder `jars` that EMR does not include: those of conf/jars/emr7.lock without Delta, Hudi and Iceberg, and msk.lock."
  type        = list(string)
  default = [
    "aws-msk-iam-auth-2.3.5-all.jar",
    "commons-pool2-2.11.1.jar",
    "kafka-clients-3.4.1.jar",
    "spark-avro_2.12-3.5.7.jar",
    "spark-sql-kafka-0-10_2.12-3.5.7.jar",
    "spark-token-provider-kafka-0-10_2.12-3.5.7.jar",
  ]
}

variable "schedules" {
  description = "When the layers and maintenance run: EventBridge Scheduler expressions, UTC."
  type        = object({ bronze = string, silver = string, gold = string, maintain = string })
  default = {
    bronze   = "rate(10 minutes)"
    silver   = "rate(10 minutes)"
    gold     = "rate(1 hour)"
    maintain = "cron(0 3 * * ? *)"
  }
}

variable "schedules_enabled" {
  description = "Whether scheduled runs are on. Leave it off until the artifacts are uploaded."
  type        = bool
  default     = false
}

variable "log_retention_days" {
  description = "How many days to keep the logs of runs."
  type        = number
  default     = 30
}

variable "noncurrent_days" {
  description = "How many days S3 keeps deleted and overwritten objects of the lake and the artifacts."
  type        = number
  default     = 7
}

variable "alarm_email" {
  description = "E-mail address for failures, or empty. AWS asks to confirm it."
  type        = string
  default     = ""
}

variable "hours_without_success" {
  description = "Raise an alarm if no scheduled run succeeded for this many hours; up to 24."
  type        = number
  default     = 3
  validation {
    condition     = var.hours_without_success >= 1 && var.hours_without_success <= 24
    error_message = "Use 1 to 24."
  }
}

variable "serverless_capacity" {
  description = "Limits of all runs together, and the idle minutes after which the application stops."
  type        = object({ cpu = string, memory = string, disk = string, idle_minutes = number })
  default     = { cpu = "32 vCPU", memory = "128 GB", disk = "400 GB", idle_minutes = 5 }
}

variable "cluster_capacity" {
  description = "Machines of a cluster: their type, minimum and maximum number of core machines, and steps at a time."
  type        = object({ instance_type = string, minimum = number, maximum = number, steps = number })
  default     = { instance_type = "m6i.xlarge", minimum = 1, maximum = 4, steps = 4 }
}

variable "cluster_certificates" {
  description = "For a cluster: the certificates for TLS between its machines, as bucket/path/certificates.zip."
  type        = string
  default     = ""
}
