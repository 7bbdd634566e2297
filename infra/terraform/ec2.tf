# EMR adds the rules that its machines and service need. AWS' policy for the service requires the tag.
locals {
  emr_tag = { "for-use-with-amazon-emr-managed-policies" = "true" }
}

resource "aws_security_group" "cluster" {
  for_each               = local.is_ec2 ? toset(["primary", "core", "service"]) : toset([])
  name                   = "${var.name}-${each.value}"
  description            = "EMR: ${each.value}"
  vpc_id                 = var.vpc_id
  revoke_rules_on_delete = true
  tags                   = local.emr_tag
  egress {
    description = "Brokers, the registry and AWS"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
  lifecycle {
    ignore_changes = [ingress, egress]
  }
}

resource "aws_emr_security_configuration" "jobs" {
  count = local.is_ec2 ? 1 : 0
  name  = var.name
  configuration = jsonencode({
    AuthorizationConfiguration = {
      IAMConfiguration = { EnableApplicationScopedIAMRole = true }
    }
    EncryptionConfiguration = {
      EnableInTransitEncryption = true
      InTransitEncryptionConfiguration = {
        TLSCertificateConfiguration = { CertificateProviderType = "PEM", S3Object = "s3://${var.cluster_certificates}" }
      }
      EnableAtRestEncryption = true
      AtRestEncryptionConfiguration = {
        S3EncryptionConfiguration = { EncryptionMode = "SSE-KMS", AwsKmsKey = aws_kms_key.lake.arn }
        LocalDiskEncryptionConfiguration = {
          EncryptionKeyProviderType = "AwsKms"
          AwsKmsKey                 = aws_kms_key.lake.arn
          EnableEbsEncryption       = true
        }
      }
    }
    InstanceMetadataServiceConfiguration = { MinimumInstanceMetadataServiceVersion = 2, HttpPutResponseHopLimit = 1 }
  })
  lifecycle {
    precondition {
      condition     = var.cluster_certificates != ""
      error_message = "A cluster needs cluster_certificates: its machines speak TLS to each other."
    }
  }
}

resource "aws_emr_cluster" "jobs" {
  count                             = local.is_ec2 ? 1 : 0
  name                              = var.name
  release_label                     = var.release_label
  applications                      = ["Hadoop", "Spark"]
  configurations_json               = jsonencode(yamldecode(file("${path.module}/configurations.yml")))
  log_uri                           = "s3://${local.buckets.logs}/ec2/"
  service_role                      = aws_iam_role.service[0].arn
  security_configuration            = aws_emr_security_configuration.jobs[0].name
  step_concurrency_level            = var.cluster_capacity.steps
  keep_job_flow_alive_when_no_steps = true
  tags                              = local.emr_tag
  ec2_attributes {
    instance_profile                  = aws_iam_instance_profile.instance[0].arn
    subnet_id                         = var.subnet_ids[0]
    emr_managed_master_security_group = aws_security_group.cluster["primary"].id
    emr_managed_slave_security_group  = aws_security_group.cluster["core"].id
    service_access_security_group     = aws_security_group.cluster["service"].id
  }
  master_instance_group {
    instance_type = var.cluster_capacity.instance_type
  }
  core_instance_group {
    instance_type  = var.cluster_capacity.instance_type
    instance_count = var.cluster_capacity.minimum
  }
  lifecycle {
    ignore_changes = [core_instance_group[0].instance_count]
  }
  depends_on = [aws_iam_role_policy.service, aws_iam_role_policy_attachment.service, aws_iam_role_policy.instance]
}

resource "aws_emr_managed_scaling_policy" "jobs" {
  count      = local.is_ec2 ? 1 : 0
  cluster_id = aws_emr_cluster.jobs[0].id
  compute_limits {
    unit_type                       = "Instances"
    minimum_capacity_units          = var.cluster_capacity.minimum
    maximum_capacity_units          = var.cluster_capacity.maximum
    maximum_core_capacity_units     = var.cluster_capacity.maximum
    maximum_ondemand_capacity_units = var.cluster_capacity.maximum
  }
}
