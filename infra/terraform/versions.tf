terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.25, < 7"
    }
  }
}

provider "aws" {
  region = var.region
  default_tags {
    tags = merge({ Project = var.name }, var.tags)
  }
}
