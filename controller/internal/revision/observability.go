package revision

import "ebb.dev/ebb/settings"

// observability is the JSON of OBSERVABILITY_CONFIG: what queue-proxy needs of
// config-observability. It is a function of the settings only, with sorted keys, so that equal
// settings never look like a change.
type observability struct {
	EnableRequestLog      bool    `json:"enableRequestLog,omitempty"`
	EnableProbeRequestLog bool    `json:"enableProbeRequestLog,omitempty"`
	RequestLogTemplate    string  `json:"requestLogTemplate,omitempty"`
	RequestMetrics        export  `json:"requestMetrics"`
	Tracing               tracing `json:"tracing"`
	RuntimeProfiling      bool    `json:"runtimeProfiling,omitempty"`
}

type export struct {
	Protocol string `json:"protocol,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Interval string `json:"interval,omitempty"`
}

type tracing struct {
	Protocol     string  `json:"protocol,omitempty"`
	Endpoint     string  `json:"endpoint,omitempty"`
	SamplingRate float64 `json:"samplingRate,omitempty"`
}

func observabilityOf(o settings.Observability) observability {
	out := observability{
		EnableRequestLog:      o.EnableRequestLog,
		EnableProbeRequestLog: o.EnableProbeRequestLog,
		RequestMetrics:        export{Protocol: o.RequestMetrics.Protocol, Endpoint: o.RequestMetrics.Endpoint},
		Tracing:               tracing{Protocol: o.Tracing.Protocol, Endpoint: o.Tracing.Endpoint, SamplingRate: o.Tracing.SamplingRate},
		RuntimeProfiling:      o.RuntimeProfiling,
	}
	if o.RequestMetrics.Interval > 0 {
		out.RequestMetrics.Interval = o.RequestMetrics.Interval.String()
	}
	if o.EnableRequestLog {
		out.RequestLogTemplate = o.RequestLogTemplate
	}
	return out
}
