output "emr" {
  description = "The block `emr:` for the configuration file from which `cdc-lake emr` submits."
  value = yamlencode({
    emr = merge(
      {
        name      = var.name
        region    = var.region
        release   = var.release_label
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
  description = "Who asks the brokers and the registry: let them in there."
  value       = local.is_ec2 ? [for use in ["primary", "core"] : aws_security_group.cluster[use].id] : aws_security_group.jobs[*].id
}

output "alarm_topic" {
  description = "The SNS topic of failures."
  value       = aws_sns_topic.alarms.arn
}
