package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Probe is a Kubernetes probe, with the fields that queue-proxy uses. The kubelet runs exec probes
// itself. For these, queue-proxy checks that the port accepts connections.
type Probe struct {
	HTTPGet   *ProbeHTTP   `json:"httpGet,omitempty"`
	TCPSocket *ProbeSocket `json:"tcpSocket,omitempty"`
	GRPC      *ProbeGRPC   `json:"grpc,omitempty"`

	InitialDelaySeconds int `json:"initialDelaySeconds,omitempty"`
	TimeoutSeconds      int `json:"timeoutSeconds,omitempty"`
	PeriodSeconds       int `json:"periodSeconds,omitempty"`
	SuccessThreshold    int `json:"successThreshold"`
	FailureThreshold    int `json:"failureThreshold,omitempty"`
}

// ProbeHTTP is what an HTTP probe asks.
type ProbeHTTP struct {
	Path        string        `json:"path,omitempty"`
	Port        ProbePort     `json:"port"`
	Host        string        `json:"host,omitempty"`
	Scheme      string        `json:"scheme"` // HTTP or HTTPS once ReadProbes returned it
	HTTPHeaders []ProbeHeader `json:"httpHeaders,omitempty"`
}

// ProbeHeader is a field of an HTTP probe.
type ProbeHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ProbeGRPC is what a gRPC probe asks.
type ProbeGRPC struct {
	Port    ProbePort `json:"port"`
	Service *string   `json:"service,omitempty"`
}

// ProbeSocket is where a TCP probe connects.
type ProbeSocket struct {
	Port ProbePort `json:"port"`
	Host string    `json:"host,omitempty"`
}

// ProbePort is an IntOrString that must be a number: the controller resolves names.
type ProbePort int

// UnmarshalJSON reads a number, or a string that holds one.
func (p *ProbePort) UnmarshalJSON(data []byte) error {
	text := string(data)
	if len(text) > 1 && text[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		if text == "" {
			text = "0"
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("port %s is not a number from 0 to 65535", text)
	}
	*p = ProbePort(n)
	return nil
}

// ReadProbes reads one probe or an array of probes as JSON and sets defaults. port is the port of
// the user container. Admission rejects what ReadProbes rejects, because queue-proxy ends if it
// gets such a probe.
func ReadProbes(text string, port int) ([]Probe, error) {
	text = strings.TrimSpace(text)
	if text == "" || text == "null" {
		return nil, nil
	}
	if text[0] != '[' {
		text = "[" + text + "]"
	}
	var probes []Probe
	if err := json.Unmarshal([]byte(text), &probes); err != nil {
		return nil, fmt.Errorf("not a probe: %w", err)
	}
	for i := range probes {
		if err := probes[i].complete(ProbePort(port)); err != nil {
			return nil, err
		}
	}
	return probes, nil
}

func (p *Probe) complete(port ProbePort) error {
	given := 0
	fill := func(field *ProbePort) {
		given++
		if *field == 0 {
			*field = port
		}
	}
	if p.HTTPGet != nil {
		fill(&p.HTTPGet.Port)
		switch scheme := strings.ToUpper(p.HTTPGet.Scheme); scheme {
		case "":
			p.HTTPGet.Scheme = "HTTP"
		case "HTTP", "HTTPS":
			p.HTTPGet.Scheme = scheme
		default:
			return fmt.Errorf("scheme %q of an HTTP probe is neither HTTP nor HTTPS", p.HTTPGet.Scheme)
		}
	}
	if p.TCPSocket != nil {
		fill(&p.TCPSocket.Port)
	}
	if p.GRPC != nil {
		fill(&p.GRPC.Port)
	}
	if given > 1 {
		return errors.New("a probe has more than one kind")
	}
	if given == 0 {
		p.TCPSocket = &ProbeSocket{Port: port}
	}
	p.SuccessThreshold = max(p.SuccessThreshold, 1)
	return nil
}
