data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  is_ec2     = var.target == "ec2"
  layers     = toset(["bronze", "silver", "gold", "maintain"])
  partition  = data.aws_partition.current.partition
  account    = data.aws_caller_identity.current.account_id
  role_root  = "arn:${local.partition}:iam::${local.account}:role"
  parameter  = "/${var.name}/config"
  topic_name = "${var.name}-alarms"
  artifacts  = "s3://${var.lake_bucket}-artifacts/cdc_lake"
  buckets = {
    lake      = var.lake_bucket
    artifacts = "${var.lake_bucket}-artifacts"
    logs      = "${var.lake_bucket}-logs"
  }
  # If silver has several formats, each has a database of its own.
  databases = concat(
    ["bronze", "silver", "gold"],
    var.hudi || var.iceberg ? ["silver_delta"] : [],
    var.hudi ? ["silver_hudi_cow", "silver_hudi_mor"] : [],
    var.iceberg ? ["silver_iceberg_cow", "silver_iceberg_mor"] : []
  )

  # Variables of the policies whose values are known before resources are created.
  known = {
    partition     = local.partition
    account       = local.account
    region        = var.region
    prefix        = var.topic_prefix
    lake          = "arn:${local.partition}:s3:::${local.buckets.lake}"
    artifacts     = "arn:${local.partition}:s3:::${local.buckets.artifacts}"
    logs          = "arn:${local.partition}:s3:::${local.buckets.logs}"
    parameter     = "arn:${local.partition}:ssm:${var.region}:${local.account}:parameter${local.parameter}"
    secrets       = "arn:${local.partition}:ssm:${var.region}:${local.account}:parameter/${var.name}/secrets"
    glue          = "arn:${local.partition}:glue:${var.region}:${local.account}"
    topic         = "arn:${local.partition}:sns:${var.region}:${local.account}:${local.topic_name}"
    msk           = var.msk_cluster_arn
    topics        = replace(var.msk_cluster_arn, ":cluster/", ":topic/")
    groups        = replace(var.msk_cluster_arn, ":cluster/", ":group/")
    certificates  = "arn:${local.partition}:s3:::${var.cluster_certificates}"
    instance_role = "${local.role_root}/${var.name}-emr-instance"
    layer_roles   = jsonencode([for layer in local.layers : "${local.role_root}/${var.name}-${layer}"])
  }
  made = merge(local.known, {
    key         = aws_kms_key.lake.arn
    application = one(aws_emrserverless_application.jobs[*].arn)
    cluster     = one(aws_emr_cluster.jobs[*].arn)
  })
  # Conditions of statements with a `When`.
  holds = {
    msk           = var.msk_cluster_arn != ""
    hudi          = var.hudi
    iceberg       = var.iceberg
    glue_registry = var.registry_type == "glue"
  }
}
