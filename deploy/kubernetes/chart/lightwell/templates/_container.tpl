{{- define "lightwell.env" -}}
- name: LIGHTWELL_HOST
  value: "0.0.0.0"
- name: LIGHTWELL_PORT
  value: "8000"
- name: LIGHTWELL_SHUTDOWN_GRACE
  value: {{ .Values.drain.graceSeconds | quote }}
{{- with .Values.model.name }}
- name: LIGHTWELL_MODEL
  value: {{ . | quote }}
{{- end }}
{{- if gt (int .Values.gpu.count) 0 }}
- name: LIGHTWELL_DEVICE
  value: cuda
{{- if .Values.gpu.tensorParallel }}
- name: LIGHTWELL_TENSOR_PARALLEL
  value: {{ .Values.gpu.count | quote }}
{{- else }}
- name: LIGHTWELL_DEVICES
  value: all
{{- end }}
{{- end }}
{{- if or .Values.apiKeys.secret .Values.apiKeys.configMap }}
- name: LIGHTWELL_API_KEY_FILE
  value: /keys/{{ .Values.apiKeys.file }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if has $name (list "model" "host" "port" "device" "devices" "tensor_parallel" "api_key_file" "shutdown_grace") }}
{{- fail (printf "settings.%s is set by other values of the chart (model, gpu, apiKeys, drain)" $name) }}
{{- end }}
{{- if has $name (list "api_key") }}
{{- fail "settings.api_key would lie in the manifest for all to read: use apiKeys.secret" }}
{{- end }}
- name: LIGHTWELL_{{ upper $name }}
  value: {{ include "lightwell.plain" $value | quote }}
{{- end }}
{{- if not (hasKey .Values.settings "threads") }}
{{- with include "lightwell.cpus" . }}
- name: LIGHTWELL_THREADS
  value: {{ . | quote }}
{{- end }}
{{- end }}
- name: HF_HOME
  value: /cache/hub
- name: TRITON_CACHE_DIR
  value: /cache/triton
{{- with .Values.model.hubTokenSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.model.hubTokenKey }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Lists with commas between, as variables have them; Helm reads numbers as floats and would write 4e+06. */}}
{{- define "lightwell.plain" -}}
{{- if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* A worker's share of the whole CPUs of the limit, or else of the request; nothing where neither is set. */}}
{{- define "lightwell.cpus" -}}
{{- $limits := .Values.resources.limits | default dict -}}
{{- $requests := .Values.resources.requests | default dict -}}
{{- with $limits.cpu | default $requests.cpu -}}
{{- $cpu := toString . -}}
{{- $count := ternary (divf (float64 (trimSuffix "m" $cpu)) 1000) (float64 (trimSuffix "m" $cpu)) (hasSuffix "m" $cpu) -}}
{{- $workers := ternary 1 (max 1 (int $.Values.gpu.count)) $.Values.gpu.tensorParallel -}}
{{- max 1 (div (int (floor $count)) $workers) -}}
{{- end -}}
{{- end -}}

{{- define "lightwell.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $limits := $resources.limits | default dict | merge (dict .Values.gpu.resource (int .Values.gpu.count)) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "lightwell.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: cache
  mountPath: /cache
{{- if .Values.model.claim }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- if or .Values.apiKeys.secret .Values.apiKeys.configMap }}
- name: keys
  mountPath: /keys
  readOnly: true
{{- end }}
{{- if gt (int .Values.gpu.count) 1 }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "lightwell.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
- name: cache
  {{- with include "lightwell.cacheClaim" . }}
  persistentVolumeClaim:
    claimName: {{ . }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.cache.size }}
  {{- end }}
{{- with .Values.model.claim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- if .Values.apiKeys.secret }}
- name: keys
  secret:
    secretName: {{ .Values.apiKeys.secret }}
{{- else if .Values.apiKeys.configMap }}
- name: keys
  configMap:
    name: {{ .Values.apiKeys.configMap }}
{{- end }}
{{- if gt (int .Values.gpu.count) 1 }}
# Collectives between the GPUs of a pod pass through it.
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: 1Gi
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
