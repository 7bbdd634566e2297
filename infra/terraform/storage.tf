resource "aws_kms_key" "lake" {
  description         = "Tables, artifacts and logs of ${var.name}"
  enable_key_rotation = true
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/key.yml", local.known))
  })
}

resource "aws_kms_alias" "lake" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.lake.key_id
}

resource "aws_s3_bucket" "each" {
  for_each = local.buckets
  bucket   = each.value
}

resource "aws_s3_bucket_ownership_controls" "each" {
  for_each = aws_s3_bucket.each
  bucket   = each.value.id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "each" {
  for_each                = aws_s3_bucket.each
  bucket                  = each.value.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "each" {
  for_each = aws_s3_bucket.each
  bucket   = each.value.id
  rule {
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.lake.arn
    }
  }
}

resource "aws_s3_bucket_policy" "each" {
  for_each = aws_s3_bucket.each
  bucket   = each.value.id
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = yamldecode(templatefile("${path.module}/policies/bucket.yml", { bucket = each.value.arn }))
  })
  depends_on = [aws_s3_bucket_public_access_block.each]
}

# Logs are written once. Objects in the other buckets are overwritten and deleted, so their versions are kept.
resource "aws_s3_bucket_versioning" "each" {
  for_each = { for use, bucket in aws_s3_bucket.each : use => bucket if use != "logs" }
  bucket   = each.value.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "versioned" {
  for_each = aws_s3_bucket_versioning.each
  bucket   = each.value.bucket
  rule {
    id     = "what-was-deleted"
    status = "Enabled"
    filter {}
    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }
    expiration {
      expired_object_delete_marker = true
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 3
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "logs" {
  bucket = aws_s3_bucket.each["logs"].id
  rule {
    id     = "old-logs"
    status = "Enabled"
    filter {}
    expiration {
      days = var.log_retention_days
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 3
    }
  }
}
