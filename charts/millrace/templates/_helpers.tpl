{{/* The name of everything that is the operator's. Short enough for suffixes: a name has 63 characters at most. */}}
{{- define "millrace.fullname" -}}
{{- $release := .Release.Name -}}
{{- $made := ternary $release (printf "%s-millrace" $release) (contains "millrace" $release) -}}
{{- .Values.fullnameOverride | default (printf "%s-operator" (trunc 36 $made | trimSuffix "-")) -}}
{{- end }}

{{- define "millrace.selector" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Takes (list root component): only the operator's own pods may bear its component. */}}
{{- define "millrace.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "millrace.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "millrace.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "millrace.tag" -}}
{{- .Values.image.tag | default .Chart.AppVersion -}}
{{- end }}

{{/* Of backfills; empty: none. */}}
{{- define "millrace.backfillPriorityClass" -}}
{{- $created := ternary (printf "%s-backfill" (include "millrace.fullname" .)) "" .Values.backfill.priorityClass.create -}}
{{- .Values.backfill.priorityClassName | default $created -}}
{{- end }}

{{/* What the pods of Deployment, uninstall and test have in common. */}}
{{- define "millrace.pod" -}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "millrace.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (include "millrace.tag" .) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [millrace-operator]
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{/*
A role with its binding: a Role in `namespace`, or a ClusterRole where that is empty. Takes a dict of root, name,
namespace, component, serviceAccount, rules (YAML) and, for hooks, annotations.
*/}}
{{- define "millrace.grant" -}}
{{- $kind := ternary "Role" "ClusterRole" (not (empty .namespace)) -}}
{{- range $suffix := list "" "Binding" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}{{ $suffix }}
metadata:
  name: {{ $.name }}
  {{- with $.namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "millrace.labels" (list $.root $.component) | nindent 4 }}
  {{- with $.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if $suffix }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $.name }}
subjects:
  - kind: ServiceAccount
    name: {{ $.serviceAccount }}
    namespace: {{ $.root.Release.Namespace }}
{{- else }}
rules:
  {{- $.rules | trim | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of a pod that makes a few calls and ends. */}}
{{- define "millrace.smallResources" -}}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {memory: 64Mi}
{{- end }}
