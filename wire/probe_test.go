package wire

import "testing"

func TestReadProbes(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		ok   bool
	}{
		"a scheme in lower case":    {`{"httpGet":{"scheme":"https"}}`, true},
		"a scheme in mixed case":    {`{"httpGet":{"scheme":"Http"}}`, true},
		"no scheme":                 {`{"httpGet":{}}`, true},
		"a port as a string":        {`{"tcpSocket":{"port":"0"}}`, true},
		"an array":                  {`[{"tcpSocket":{}},{"grpc":{"port":1}}]`, true},
		"another scheme":            {`{"httpGet":{"scheme":"ftp"}}`, false},
		"the name of a port":        {`{"tcpSocket":{"port":"http"}}`, false},
		"a port that is too large":  {`{"tcpSocket":{"port":65536}}`, false},
		"two kinds":                 {`{"httpGet":{},"tcpSocket":{}}`, false},
		"something that is no JSON": {`{`, false},
	} {
		t.Run(name, func(t *testing.T) {
			probes, err := ReadProbes(test.text, 80)
			if (err == nil) != test.ok {
				t.Fatalf("error %v", err)
			}
			for _, p := range probes {
				if h := p.HTTPGet; h != nil && (h.Scheme != "HTTP" && h.Scheme != "HTTPS" || h.Port != 80) {
					t.Errorf("scheme %q, port %d", h.Scheme, h.Port)
				}
			}
		})
	}
}
