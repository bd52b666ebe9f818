// Package nginx finds nginx and configures it as a plain reverse proxy with one worker. Benchmarks
// compare Ebb's proxies with it.
//
// Owns: nothing. Reads: nothing. Writes: a configuration, in the caller's directory, where nginx
// keeps its own files too. It installs Debian's nginx if there is none. Never: starts nginx; the
// caller does.
package nginx

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Find returns the path of nginx. It installs nginx first if it is missing.
func Find(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("nginx"); err == nil {
		return path, nil
	}
	if out, err := exec.CommandContext(ctx, "apt-get", "install", "-y", "--no-install-recommends", "nginx-light").CombinedOutput(); err != nil {
		return "", fmt.Errorf("install nginx: %w\n%s", err, out)
	}
	path, err := exec.LookPath("nginx")
	if err != nil {
		return "", fmt.Errorf("nginx was installed but cannot be found: %w", err)
	}
	return path, nil
}

// Arguments writes the configuration of a proxy from listen to upstream, both host:port, to dir and
// returns nginx's arguments. The proxy keeps connections open on both sides, logs nothing, and is
// one process in the foreground. directives are added to the server.
func Arguments(dir, listen, upstream string, directives ...string) ([]string, error) {
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; master_process off; worker_processes 1; pid %[1]s/nginx.pid; error_log stderr crit;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000; keepalive_timeout 3600s;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  upstream backend { server %[2]s; keepalive 512; keepalive_requests 1000000000; }
  server {
    listen %[3]s backlog=4096; %[4]s
    location / { proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; }
  }
}
`, dir, upstream, listen, strings.Join(directives, " "))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("write nginx's configuration: %w", err)
	}
	return []string{"-c", config, "-p", dir}, nil
}
