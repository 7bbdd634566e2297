output "emr" {
  description = "The block `emr:` for the configuration file of `cdc-lake emr`."
  value = yamlencode({
    emr = merge(
      {
        name      = var.name
        region    = var.region
        artifacts = local.artifacts
        config    = "ssm:${local.parameter}"
        logs      = "s3://${local.buckets.logs}/${var.target}"
        roles     = { for layer, role in aws_iam_role.layer : layer => role.arn }
      },
      { for id in aws_emr_cluster.jobs[*].id : "cluster" => { id = id } },
      { for id in aws_emrserverless_application.jobs[*].id : "serverless" => { application = id } }
    )
  })
}

output "security_group_ids" {
  description = "Security groups of the jobs; allow them to reach the brokers and the registry."
  value       = local.is_ec2 ? [for use in ["primary", "core"] : aws_security_group.cluster[use].id] : aws_security_group.jobs[*].id
}

output "alarm_topic" {
  description = "The SNS topic for failures."
  value       = aws_sns_topic.alarms.arn
}
