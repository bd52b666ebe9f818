package install

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"net/netip"
	"text/template"
	"time"
)

//go:embed certmanager.yaml dns.yaml envoygateway.yaml istio.yaml metrics.yaml prometheus.yaml standin.yaml
var templates embed.FS

func render(name string, values any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(templates, name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("fill in %s: %w", name, err)
	}
	return out.Bytes(), nil
}

// DNSManifests returns the manifests of the cluster's DNS server, at its fixed address.
func DNSManifests(image string, address netip.Addr) ([]byte, error) {
	return render("dns.yaml", map[string]any{"Image": image, "Address": address})
}

// MetricsManifests returns the manifests of the metrics server, which serves the API
// metrics.k8s.io.
func MetricsManifests(image string) ([]byte, error) {
	return render("metrics.yaml", map[string]any{"Image": image})
}

// GatewayAPI installs the definitions of the Gateway API from its module's folder.
func GatewayAPI(ctx context.Context, k Kubectl, module string) error {
	if _, err := k.Run(ctx, nil, "apply", "--server-side", "--force-conflicts", "--field-manager=ebb-dev", "-f", module+"/config/crd/standard"); err != nil {
		return err
	}
	_, err := k.Run(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s",
		"crd/gateways.gateway.networking.k8s.io", "crd/httproutes.gateway.networking.k8s.io", "crd/gatewayclasses.gateway.networking.k8s.io")
	return err
}

// CertManagerManifests returns the manifests of cert-manager's controller.
func CertManagerManifests(image string) ([]byte, error) {
	return render("certmanager.yaml", map[string]any{"Image": image})
}

// CertManager installs cert-manager: the definitions from its module's folder, the controller, and
// the issuers from the folder issuers.
func CertManager(ctx context.Context, k Kubectl, module string, manifests []byte, issuers string) error {
	if _, err := k.Run(ctx, nil, "apply", "--server-side", "--force-conflicts", "--field-manager=ebb-dev", "-f", module+"/deploy/crds"); err != nil {
		return err
	}
	if _, err := k.Run(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s",
		"crd/certificates.cert-manager.io", "crd/certificaterequests.cert-manager.io", "crd/clusterissuers.cert-manager.io", "crd/issuers.cert-manager.io"); err != nil {
		return err
	}
	if _, err := k.Apply(ctx, manifests); err != nil {
		return err
	}
	if err := k.Rollout(ctx, "cert-manager", "deployment/cert-manager", time.Minute); err != nil {
		return err
	}
	if _, err := k.Run(ctx, nil, "apply", "--server-side", "--force-conflicts", "--field-manager=ebb-dev", "-k", issuers); err != nil {
		return err
	}
	_, err := k.Run(ctx, nil, "wait", "--for=condition=Ready", "--timeout=60s", "clusterissuer/knative-selfsigned-issuer")
	return err
}
