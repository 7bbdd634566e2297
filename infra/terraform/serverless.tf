resource "aws_security_group" "jobs" {
  count       = local.is_ec2 ? 0 : 1
  name        = "${var.name}-jobs"
  description = "Runs on EMR Serverless: nothing comes in."
  vpc_id      = var.vpc_id
  egress {
    description = "Brokers, the registry and AWS"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_emrserverless_application" "jobs" {
  count         = local.is_ec2 ? 0 : 1
  name          = var.name
  release_label = var.release_label
  type          = "spark"
  architecture  = "X86_64"
  auto_start_configuration {
    enabled = true
  }
  auto_stop_configuration {
    enabled              = true
    idle_timeout_minutes = var.serverless_capacity.idle_minutes
  }
  maximum_capacity {
    cpu    = var.serverless_capacity.cpu
    memory = var.serverless_capacity.memory
    disk   = var.serverless_capacity.disk
  }
  dynamic "runtime_configuration" {
    for_each = [for one in yamldecode(file("${path.module}/configurations.yml")) : one if one.Classification == "spark-defaults"]
    content {
      classification = runtime_configuration.value.Classification
      properties     = runtime_configuration.value.Properties
    }
  }
  network_configuration {
    subnet_ids         = var.subnet_ids
    security_group_ids = aws_security_group.jobs[*].id
  }
}
