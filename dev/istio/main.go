// Command istio is pilot-discovery (istiod) and pilot-agent (the supervisor of
// a gateway's Envoy) in one binary, chosen by the name it is called by.
//
// It owns nothing and adds no behaviour: each name runs the command that
// Istio's own main package of that name runs.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/KimMachineGun/automemlimit" // GOMEMLIMIT from the container's limit, as Istio's own mains do
	"github.com/spf13/cobra"
	mesh "istio.io/api/mesh/v1alpha1"
	agent "istio.io/istio/pilot/cmd/pilot-agent/app"
	discovery "istio.io/istio/pilot/cmd/pilot-discovery/app"
	istioagent "istio.io/istio/pkg/istio-agent"
	"istio.io/istio/pkg/log"
	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/nodeagent/sds"
)

func main() {
	log.EnableKlogWithCobra()
	var command *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "pilot-discovery":
		command = discovery.NewRootCommand()
	case "pilot-agent":
		command = agent.NewRootCommand(serveSecrets)
	default:
		fmt.Fprintf(os.Stderr, "%s: link this binary as pilot-discovery or pilot-agent\n", name)
		os.Exit(2)
	}
	if err := command.Execute(); err != nil {
		log.Error(err)
		os.Exit(1)
	}
}

// serveSecrets gives Envoy its certificates. The agent panics without it.
func serveSecrets(o *security.Options, cache security.SecretManager, key *mesh.PrivateKeyProvider) istioagent.SDSService {
	return sds.NewServer(o, cache, key)
}
