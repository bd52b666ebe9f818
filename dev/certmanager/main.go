// Command certmanager is the controller of cert-manager, with the control loops that are needed for
// certificates of a certificate authority in the cluster.
//
// It owns nothing and adds no behaviour. It leaves out the issuers that talk to servers outside the
// cluster (ACME, Vault, Venafi), and with them the libraries of a dozen cloud providers; the
// webhook, which would only reject wrong objects earlier; and cainjector, which serves the webhook.
// One replica needs no lease.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// workers is how many objects each loop works on at a time.
const workers = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:       os.Getenv("KUBECONFIG"), // empty: as a pod does
		KubernetesAPIQPS: 50, KubernetesAPIBurst: 100,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: os.Getenv("POD_NAMESPACE")},
		CertificateOptions: controller.CertificateOptions{
			// The default is an hour, too long for tests.
			CertificateRequestMinimumBackoffDuration: 10 * time.Second,
			CertificateRequestMaximumBackoffDuration: time.Minute,
		},
	})
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	known := controller.Known()
	loops := map[string]controller.Interface{}
	for name, construct := range known { // all, before the informers that they ask for are started
		if loops[name], err = construct(factory); err != nil {
			return fmt.Errorf("make the control loop %s: %w", name, err)
		}
	}
	fmt.Println("certmanager runs", slices.Sorted(maps.Keys(known)))
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	var running sync.WaitGroup
	for name, loop := range loops {
		running.Go(func() {
			if err := loop.Run(workers, ctx); err != nil {
				cancel(fmt.Errorf("the control loop %s: %w", name, err))
			}
		})
	}
	<-ctx.Done()
	running.Wait()
	if err := context.Cause(ctx); err != context.Canceled {
		return err
	}
	return nil
}
