package cgi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// MaxHeader bounds the header that a program may write, in bytes.
const MaxHeader = 64 << 10

// hopByHop are headers about the connection, and Content-Length, which the shim counts itself.
var hopByHop = map[string]bool{"Connection": true, "Content-Length": true, "Keep-Alive": true, "Proxy-Authenticate": true,
	"Proxy-Authorization": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true}

// ReadHeader reads the header that a program writes before its answer, up to an empty line: lines
// of "Name: value", among them "Status: 404 Not Found". Without Status the status is 200, or 302 if
// there is a Location. Headers about the connection are left out.
func ReadHeader(r *bufio.Reader) (status int, header http.Header, err error) {
	header = http.Header{}
	for size := 0; ; {
		line, err := readLine(r, MaxHeader-size)
		if err != nil {
			return 0, nil, err
		}
		if size += len(line); line == "" {
			break
		}
		name, value, colon := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !colon || !isToken(name) {
			return 0, nil, fmt.Errorf("the line %.100q is no header", line)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return 0, nil, fmt.Errorf("the value of the header %s has control characters", name)
		}
		switch name = http.CanonicalHeaderKey(name); {
		case name == "Status":
			if status, err = parseStatus(value); err != nil {
				return 0, nil, err
			}
		case !hopByHop[name]:
			header.Add(name, value)
		}
	}
	if status == 0 {
		status = http.StatusOK
		if header.Get("Location") != "" {
			status = http.StatusFound
		}
	}
	return status, header, nil
}

func parseStatus(value string) (int, error) {
	code, _, _ := strings.Cut(value, " ")
	if status, err := strconv.Atoi(code); err == nil && len(code) == 3 && status >= 200 && status <= 599 {
		return status, nil
	}
	return 0, fmt.Errorf("the status %.100q is not one of 200 to 599", value)
}

// readLine reads a line of at most the given number of bytes, without its end.
func readLine(r *bufio.Reader, most int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return "", fmt.Errorf("the header has more than %d bytes", MaxHeader)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return strings.TrimRight(string(line), "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return "", errors.New("the output ends before an empty line that ends the header")
		default:
			return "", err
		}
	}
}

// isToken reports whether a name is one of RFC 9110, section 5.6.2.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}
