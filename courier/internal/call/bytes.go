package call

import (
	"encoding/base64"
	"net/http"
	"strings"
	"unicode/utf8"
)

// JSON has Unicode only, and headers and paths may have any byte. What is no UTF-8 is stored in
// base64 behind a byte that neither can have.
const mark = "\x00"

func toText(raw string) string {
	if utf8.ValidString(raw) {
		return raw
	}
	return mark + base64.StdEncoding.EncodeToString([]byte(raw))
}

func ofText(text string) string {
	encoded, marked := strings.CutPrefix(text, mark)
	if !marked {
		return text
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return text
	}
	return string(raw)
}

// each returns headers with every name and value converted.
func each(h http.Header, convert func(string) string) http.Header {
	if h == nil {
		return nil
	}
	out := make(http.Header, len(h))
	for name, values := range h {
		converted := make([]string, len(values))
		for i, value := range values {
			converted[i] = convert(value)
		}
		out[convert(name)] = converted
	}
	return out
}
