# policies/ has each statement, with its reason. `When` is not part of AWS' syntax: it names the condition of a statement.
locals {
  layer_statements = {
    for layer in local.layers : layer => [
      for statement in yamldecode(templatefile("${path.module}/policies/${layer}.yml", local.made)) :
      { for key, value in statement : key => value if key != "When" }
      if try(local.holds[statement.When], true)
    ]
  }
}

resource "aws_iam_policy" "common" {
  name        = "${var.name}-common"
  description = "What the jobs of all layers do."
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/common.yml", local.made))
  })
}

resource "aws_iam_role" "layer" {
  for_each    = local.layers
  name        = "${var.name}-${each.value}"
  description = "Runs the ${each.value} job."
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/trust_layer_${var.target}.yml", local.known))
  })
  depends_on = [aws_iam_role.instance]
}

resource "aws_iam_role_policy_attachment" "common" {
  for_each   = aws_iam_role.layer
  role       = each.value.name
  policy_arn = aws_iam_policy.common.arn
}

resource "aws_iam_role_policy" "layer" {
  for_each = aws_iam_role.layer
  name     = each.key
  role     = each.value.name
  policy   = jsonencode({ Version = "2012-10-17", Statement = local.layer_statements[each.key] })
}

resource "aws_iam_role" "scheduler" {
  name        = "${var.name}-scheduler"
  description = "Starts the scheduled runs."
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/trust_scheduler.yml", local.known))
  })
}

resource "aws_iam_role_policy" "scheduler" {
  name = "start-runs"
  role = aws_iam_role.scheduler.name
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/scheduler_${var.target}.yml", local.made))
  })
}

resource "aws_iam_role" "instance" {
  count       = local.is_ec2 ? 1 : 0
  name        = "${var.name}-emr-instance"
  description = "The machines of the cluster."
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/trust_instance.yml", local.known))
  })
}

resource "aws_iam_role_policy" "instance" {
  count = local.is_ec2 ? 1 : 0
  name  = "run-steps"
  role  = aws_iam_role.instance[0].name
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/instance.yml", merge(local.known, { key = aws_kms_key.lake.arn })))
  })
}

resource "aws_iam_instance_profile" "instance" {
  count = local.is_ec2 ? 1 : 0
  name  = "${var.name}-emr-instance"
  role  = aws_iam_role.instance[0].name
}

resource "aws_iam_role" "service" {
  count       = local.is_ec2 ? 1 : 0
  name        = "${var.name}-emr-service"
  description = "EMR, to run the cluster."
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/trust_service.yml", local.known))
  })
}

resource "aws_iam_role_policy_attachment" "service" {
  count      = local.is_ec2 ? 1 : 0
  role       = aws_iam_role.service[0].name
  policy_arn = "arn:${local.partition}:iam::aws:policy/service-role/AmazonEMRServicePolicy_v2"
}

resource "aws_iam_role_policy" "service" {
  count = local.is_ec2 ? 1 : 0
  name  = "start-machines"
  role  = aws_iam_role.service[0].name
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/service.yml", merge(local.known, { key = aws_kms_key.lake.arn })))
  })
}
