{{/* A value as text. Numbers of values.yaml are floats, and large ones would get an exponent. */}}
{{- define "ebb.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- end -}}
{{/* The settings of a ConfigMap: those that it is shipped with, those of values of their own, and .Values.settings. */}}
{{- define "ebb.settings" -}}
{{- $values := (index . 0).Values -}}
{{- $name := index . 1 -}}
{{- $all := deepCopy (index . 2) -}}
{{- if and (eq $name "config-domain") $values.domain }}{{ $_ := set $all $values.domain "" }}{{ end -}}
{{- if and (eq $name "config-autoscaler") $values.standby }}{{ $_ := set $all "standby" $values.standby }}{{ end -}}
{{- if and (eq $name "config-gateway") $values.gateways.create (eq $values.gateways.class "envoy-gateway") }}{{ $all = merge (include "ebb.envoyGateway" . | fromYaml) $all }}{{ end -}}
{{- if and (eq $name "config-gateway") $values.gateways.external }}{{ $_ := set $all "external-gateways" (toYaml $values.gateways.external) }}{{ end -}}
{{- if and (eq $name "config-gateway") $values.gateways.local }}{{ $_ := set $all "local-gateways" (toYaml $values.gateways.local) }}{{ end -}}
{{- range $key, $value := index $values.settings $name }}{{ $_ := set $all $key $value }}{{ end -}}
{{- range $key, $value := $all }}
{{ $key | quote }}: {{ include "ebb.text" $value | quote }}
{{- end -}}
{{- end -}}
