// Package cgi owns what a program that runs for one request knows of it: the variables of RFC 3875,
// and the header that the program may write before its answer.
//
// Owns: nothing. Reads: its arguments. Writes: nothing. Never: starts a program. The standard
// library's net/http/cgi has no limits, leaves a program's children alive, and requires a header.
package cgi

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// ErrNUL is returned for a request that cannot be passed in variables.
var ErrNUL = errors.New("the path or the query contains a NUL character")

// Environment returns the variables for a request: those of the container, which base lists, and
// those of RFC 3875. A header never replaces a variable of the container.
//
// A header X-Name becomes HTTP_X_NAME. Left out are
//   - Proxy, because programs take HTTP_PROXY for the proxy of their own requests;
//   - names with characters other than letters, digits and "-": X_Name would be taken for X-Name;
//   - values with a NUL character.
func Environment(base []string, r *http.Request, software string) ([]string, error) {
	if strings.ContainsRune(r.URL.Path, 0) || strings.ContainsRune(r.URL.RawQuery, 0) {
		return nil, ErrNUL
	}
	env := metaVariables(r, software)
	kept := make(map[string]bool, len(base)) // of the container
	for _, pair := range base {
		name, _, _ := strings.Cut(pair, "=")
		if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			kept[name] = true
		}
	}
	for _, pair := range base {
		if name, _, _ := strings.Cut(pair, "="); kept[name] {
			env = append(env, pair)
		}
	}
	for name, values := range r.Header {
		variable, ok := variableOf(name)
		separator := ", "
		if name == "Cookie" {
			separator = "; "
		}
		value := strings.Join(values, separator)
		if ok && !kept[variable] && !strings.ContainsRune(value, 0) {
			env = append(env, variable+"="+value)
		}
	}
	slices.Sort(env)
	return env, nil
}

func metaVariables(r *http.Request, software string) []string {
	host, port := r.Host, "80"
	if h, p, err := net.SplitHostPort(r.Host); err == nil {
		host = h
		if _, err := strconv.ParseUint(p, 10, 16); err == nil { // a client can write anything here
			port = p
		}
	}
	remote, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		remote = r.RemoteAddr
	}
	env := []string{
		"GATEWAY_INTERFACE=CGI/1.1",
		"SERVER_SOFTWARE=" + software,
		"SERVER_PROTOCOL=" + r.Proto,
		"SERVER_NAME=" + clean(host),
		"SERVER_PORT=" + port,
		"REQUEST_METHOD=" + r.Method,
		"REQUEST_URI=" + clean(r.RequestURI),
		"SCRIPT_NAME=",
		"PATH_INFO=" + r.URL.Path,
		"QUERY_STRING=" + r.URL.RawQuery,
		"REMOTE_ADDR=" + remote,
		"HTTP_HOST=" + clean(r.Host),
	}
	if r.ContentLength > 0 {
		env = append(env, "CONTENT_LENGTH="+strconv.FormatInt(r.ContentLength, 10))
	}
	if kind := r.Header.Get("Content-Type"); kind != "" {
		env = append(env, "CONTENT_TYPE="+clean(kind))
	}
	return env
}

// clean removes what no variable can hold.
func clean(value string) string { return strings.ReplaceAll(value, "\x00", "") }

// variableOf returns the variable of a header, or false if it gets none.
func variableOf(header string) (string, bool) {
	switch header {
	case "Proxy", "Content-Type", "Content-Length", "Host", "": // those with a variable of their own
		return "", false
	}
	name := []byte("HTTP_" + header)
	for i, c := range name[len("HTTP_"):] {
		switch {
		case 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		case 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-':
			c = '_'
		default:
			return "", false
		}
		name[len("HTTP_")+i] = c
	}
	// A map may have a name that net/http did not canonicalize.
	return string(name), string(name) != "HTTP_PROXY" && string(name) != "HTTP_HOST"
}
