package config

import (
	"fmt"
	"strings"
)

const helpHead = `shim makes any program a service: it takes HTTP requests and runs the program for them.

  SHIM_MODE=streaming shim -- tr a-z A-Z      each request runs tr: its body is the standard input,
                                              the standard output is the answer
  SHIM_MODE=http shim -- python3 server.py    starts the server once, passes requests on to it, and
                                              starts it again when it ends
  shim install DIR                            copies this file to DIR/shim

Variables:
`

const helpTail = `
A program that runs for a request finds it in the variables of CGI (RFC 3875): REQUEST_METHOD, PATH_INFO,
QUERY_STRING, CONTENT_TYPE, CONTENT_LENGTH, and HTTP_X_NAME for the header X-Name.
SIGTERM ends the shim after the requests that have come; a second one ends them, too.
`

// Help is the text of shim --help.
func Help() string {
	var b strings.Builder
	b.WriteString(helpHead)
	for _, v := range variables(&Config{}) {
		name := v.name
		if v.Default != "" {
			name += "=" + v.Default
		}
		fmt.Fprintf(&b, "\n  %s\n%s", name, wrap(v.effect, "      ", 100))
	}
	return b.String() + helpTail
}

func wrap(text, indent string, width int) string {
	var b strings.Builder
	line := indent
	for _, word := range strings.Fields(text) {
		if line != indent && len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return b.String() + line + "\n"
}
