"""Lightwell on Kubernetes: a Helm chart, the same as plain manifests, and an example for the Gateway API."""
