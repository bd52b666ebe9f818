// Command gateway is Envoy Gateway: it makes Envoys for Gateways and configures them.
//
// It owns nothing and adds no behaviour: it runs the command that Envoy Gateway's own main runs.
package main

import (
	"fmt"
	"os"

	"github.com/envoyproxy/gateway/cmd/envoy-gateway/root"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	if err := root.GetRootCommand(nil).ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
