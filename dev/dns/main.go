// Command dns is CoreDNS with the few plugins a cluster's own DNS needs.
//
// CoreDNS's own main links every plugin, and with them the libraries of three
// clouds; this one compiles in a fraction of the time. It adds no behaviour.
package main

import (
	"github.com/coredns/coredns/coremain"

	// Each import registers a plugin; the order in which they answer is fixed
	// by CoreDNS (core/dnsserver/zdirectives.go), not by this list.
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() { coremain.Run() }
