locals {
  table_arguments = flatten([for table in var.tables : ["--table", table]])
  model_arguments = flatten([for model in var.models : ["--model", model]])
  # `maintain` takes models by `--table`, too.
  models_as_tables = flatten([for model in var.models : ["--table", model]])
  jobs = {
    bronze          = { layer = "bronze", arguments = local.table_arguments }
    silver          = { layer = "silver", arguments = local.table_arguments }
    gold            = { layer = "gold", arguments = local.model_arguments }
    maintain-bronze = { layer = "maintain", arguments = concat(["--layer", "bronze"], local.table_arguments) }
    maintain-silver = { layer = "maintain", arguments = concat(["--layer", "silver"], local.table_arguments) }
    maintain-gold   = { layer = "maintain", arguments = concat(["--layer", "gold"], local.models_as_tables) }
  }
  version = "${local.artifacts}/${var.artifacts_version}"
}

resource "aws_scheduler_schedule_group" "runs" {
  name = var.name
}

resource "aws_scheduler_schedule" "run" {
  for_each            = local.jobs
  name                = "${var.name}-${each.key}"
  group_name          = aws_scheduler_schedule_group.runs.name
  description         = "The ${each.key} job."
  state               = var.schedules_enabled ? "ENABLED" : "DISABLED"
  schedule_expression = var.schedules[each.value.layer]
  flexible_time_window {
    mode = "OFF"
  }
  target {
    arn      = "arn:${local.partition}:scheduler:::aws-sdk:${local.is_ec2 ? "emr:addJobFlowSteps" : "emrserverless:startJobRun"}"
    role_arn = aws_iam_role.scheduler.arn
    # A template, because jsonencode would escape the `<` of the scheduler's placeholders.
    input = templatefile("${path.module}/requests/${local.is_ec2 ? "step" : "job_run"}.json", {
      application_id = one(aws_emrserverless_application.jobs[*].id)
      cluster_id     = one(aws_emr_cluster.jobs[*].id)
      role           = aws_iam_role.layer[each.value.layer].arn
      job            = each.key
      file           = each.value.layer
      version        = local.version
      jars           = join(",", [for jar in var.jars : "${local.version}/jars/${jar}"])
      parameter      = local.parameter
      region         = var.region
      logs_bucket    = local.buckets.logs
      arguments      = join(", ", [for argument in each.value.arguments : jsonencode(argument)])
    })
    # The next run catches up on a missed one.
    retry_policy {
      maximum_retry_attempts       = 2
      maximum_event_age_in_seconds = 300
    }
  }
}
