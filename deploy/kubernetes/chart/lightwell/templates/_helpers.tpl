{{- define "lightwell.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains "lightwell" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-lightwell" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "lightwell.selector" -}}
app.kubernetes.io/name: lightwell
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lightwell.labels" -}}
{{ include "lightwell.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "lightwell.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "lightwell.name" .) -}}
{{- end -}}

{{- define "lightwell.cacheClaim" -}}
{{- if .Values.cache.existingClaim -}}
{{- .Values.cache.existingClaim -}}
{{- else if .Values.cache.persistent -}}
{{- include "lightwell.name" . -}}-cache
{{- end -}}
{{- end -}}

{{/* preStop, then --shutdown-grace, then what the workers need to end after the last request was cut off. */}}
{{- define "lightwell.terminationSeconds" -}}
{{- add (int .Values.drain.endpointsSeconds) (int .Values.drain.graceSeconds) 15 -}}
{{- end -}}

{{/* A model of the hub has to be fetched; a folder and the built-in one are there. */}}
{{- define "lightwell.usesHub" -}}
{{- if and .Values.model.name (not (hasPrefix "/" .Values.model.name)) -}}yes{{- end -}}
{{- end -}}
