variable "name" {
  description = "What everything here is called, or begins with."
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
  description = "Tags that everything gets besides `Project`."
  type        = map(string)
  default     = {}
}

variable "lake_bucket" {
  description = "Name of the bucket of the tables. Two more are called this with `-artifacts` and `-logs` behind it."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,50}[a-z0-9]$", var.lake_bucket))
    error_message = "Use 3 to 52 small letters, digits and hyphens."
  }
}

variable "vpc_id" {
  description = "The network that jobs run in, from which Kafka and the registry can be reached."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets of it, with a way to S3, KMS, Glue, SSM and STS. A cluster takes the first."
  type        = list(string)
  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "Name one at least."
  }
}

variable "kafka_bootstrap_servers" {
  description = "host:port of the brokers, comma separated."
  type        = string
}

variable "msk_cluster_arn" {
  description = "ARN of the MSK cluster, if brokers are asked by IAM. Without it no role may speak to MSK by IAM."
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
  description = "What `--table` says in scheduled runs: topics or globs."
  type        = list(string)
  default     = ["*"]
}

variable "models" {
  description = "What `--model` says in scheduled runs of gold: names or globs."
  type        = list(string)
  default     = ["*"]
}

variable "hudi" {
  description = "Whether tables are held in Hudi, whose writer removes files itself: silver and gold may then delete data."
  type        = bool
  default     = false
}

variable "settings" {
  description = "More of cdc_lake's settings, as YAML with other keys than those of config.yml: `defaults: {deletes: {mode: hard}}`."
  type        = string
  default     = ""
}

variable "release_label" {
  description = "The EMR release."
  type        = string
  default     = "emr-7.13.0"
}

variable "artifacts_version" {
  description = "The folder below s3://<lake bucket>-artifacts/cdc_lake that scheduled runs take the jobs from."
  type        = string
  default     = "0.1.0"
}

variable "jars" {
  description = "The jars in its folder `jars` that EMR does not bring: those of conf/jars/emr7.lock without Delta and Hudi, and msk.lock."
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
  description = "When layers run, and maintenance: EventBridge Scheduler's expressions, UTC."
  type        = object({ bronze = string, silver = string, gold = string, maintain = string })
  default = {
    bronze   = "rate(10 minutes)"
    silver   = "rate(10 minutes)"
    gold     = "rate(1 hour)"
    maintain = "cron(0 3 * * ? *)"
  }
}

variable "schedules_enabled" {
  description = "Whether anything runs by itself. Off until the artifacts are uploaded."
  type        = bool
  default     = false
}

variable "log_retention_days" {
  description = "How long logs of runs are kept."
  type        = number
  default     = 30
}

variable "noncurrent_days" {
  description = "How long S3 keeps what was deleted or overwritten in the lake and the artifacts."
  type        = number
  default     = 7
}

variable "alarm_email" {
  description = "Who is told of failures; nobody, if empty. AWS asks the address to confirm."
  type        = string
  default     = ""
}

variable "hours_without_success" {
  description = "An alarm, if no scheduled run succeeded for so many hours; up to 24."
  type        = number
  default     = 3
  validation {
    condition     = var.hours_without_success >= 1 && var.hours_without_success <= 24
    error_message = "Use 1 to 24."
  }
}

variable "serverless_capacity" {
  description = "What all runs together may take, and after how many idle minutes the application stops."
  type        = object({ cpu = string, memory = string, disk = string, idle_minutes = number })
  default     = { cpu = "32 vCPU", memory = "128 GB", disk = "400 GB", idle_minutes = 5 }
}

variable "cluster_capacity" {
  description = "Machines of a cluster: their type, core machines at least and at most, steps side by side."
  type        = object({ instance_type = string, minimum = number, maximum = number, steps = number })
  default     = { instance_type = "m6i.xlarge", minimum = 1, maximum = 4, steps = 4 }
}

variable "cluster_certificates" {
  description = "Of a cluster: where EMR finds the certificates for TLS between machines, as bucket/path/certificates.zip."
  type        = string
  default     = ""
}
