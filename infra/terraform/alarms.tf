resource "aws_kms_key" "alarms" {
  description         = "Alarms of ${var.name}"
  enable_key_rotation = true
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/key_alarms.yml", local.known))
  })
}

resource "aws_sns_topic" "alarms" {
  name              = local.topic_name
  kms_master_key_id = aws_kms_key.alarms.arn
}

resource "aws_sns_topic_policy" "alarms" {
  arn = aws_sns_topic.alarms.arn
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/topic.yml", local.known))
  })
}

resource "aws_sns_topic_subscription" "email" {
  count     = var.alarm_email == "" ? 0 : 1
  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

locals {
  ended = local.is_ec2 ? {
    failed    = { clusterId = aws_emr_cluster.jobs[*].id, state = ["FAILED"] }
    succeeded = { clusterId = aws_emr_cluster.jobs[*].id, state = ["COMPLETED"] }
    } : {
    failed    = { applicationId = aws_emrserverless_application.jobs[*].id, state = ["FAILED"] }
    succeeded = { applicationId = aws_emrserverless_application.jobs[*].id, state = ["SUCCESS"] }
  }
}

resource "aws_cloudwatch_event_rule" "ended" {
  for_each    = local.ended
  name        = "${var.name}-${each.key}"
  description = "Runs that ${each.key}."
  event_pattern = jsonencode({
    source        = [local.is_ec2 ? "aws.emr" : "aws.emr-serverless"]
    "detail-type" = [local.is_ec2 ? "EMR Step Status Change" : "EMR Serverless Job Run State Change"]
    detail        = each.value
  })
}

# Names the failed run; the alarm below only reports that there was one.
resource "aws_cloudwatch_event_target" "failed" {
  rule = aws_cloudwatch_event_rule.ended["failed"].name
  arn  = aws_sns_topic.alarms.arn
}

resource "aws_cloudwatch_metric_alarm" "failed" {
  alarm_name          = "${var.name}-failed"
  alarm_description   = "A run failed: see its report in the lake's _runs, or its log."
  namespace           = "AWS/Events"
  metric_name         = "TriggeredRules"
  dimensions          = { RuleName = aws_cloudwatch_event_rule.ended["failed"].name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

resource "aws_cloudwatch_metric_alarm" "no_success" {
  alarm_name          = "${var.name}-no-success"
  alarm_description   = "No run succeeded for ${var.hours_without_success} hours."
  namespace           = "AWS/Events"
  metric_name         = "TriggeredRules"
  dimensions          = { RuleName = aws_cloudwatch_event_rule.ended["succeeded"].name }
  statistic           = "Sum"
  period              = 3600
  evaluation_periods  = var.hours_without_success
  threshold           = 1
  comparison_operator = "LessThanThreshold"
  treat_missing_data  = "breaching"
  actions_enabled     = var.schedules_enabled
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

resource "aws_cloudwatch_metric_alarm" "not_started" {
  alarm_name          = "${var.name}-not-started"
  alarm_description   = "EventBridge Scheduler could not start a run: the cluster does not exist, or a role lacks a permission."
  namespace           = "AWS/Scheduler"
  metric_name         = "TargetErrorCount"
  dimensions          = { ScheduleGroup = aws_scheduler_schedule_group.runs.name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}
