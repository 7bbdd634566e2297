resource "aws_glue_catalog_database" "each" {
  for_each    = toset(local.databases)
  name        = "${var.topic_prefix}_${each.value}"
  description = "The ${each.value} tables of ${var.name}; cdc_lake lists them."
}

resource "aws_ssm_parameter" "config" {
  name        = local.parameter
  description = "cdc_lake's settings."
  type        = "String"
  # It contains no secrets, because settings only refer to them.
  value = join("\n", compact([
    templatefile("${path.module}/config.yml", {
      kafka         = var.kafka_bootstrap_servers
      kafka_auth    = var.msk_cluster_arn == "" ? "none" : "aws_msk_iam"
      registry_type = var.registry_type
      registry_url  = var.registry_url
      lake_bucket   = var.lake_bucket
      region        = var.region
      prefix        = var.topic_prefix
    }),
    var.settings,
  ]))
}
