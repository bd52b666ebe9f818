// Command kube is every Kubernetes program of the development cluster in one
// binary, chosen by the name it is called by, so that the shared code is
// compiled, linked and cached once.
//
// It owns nothing and adds no behaviour: each name runs the command that
// Kubernetes' own main package of that name runs. Only sandboxes is not part of
// Kubernetes, see sandboxes.go.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata" // CronJob time zones; the machine may have no zoneinfo

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are constructed only when they are called: constructing all of them would register the
// flags of five programs on each start.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": manager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	// The kubelet installs its signal handler itself. With a signal context here there would be
	// two, which panics.
	"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	switch {
	case name == "etcd":
		etcdmain.Main(os.Args)
	case name == "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	case name == "sandboxes":
		if err := sandboxes(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case programs[name] != nil:
		os.Exit(cli.Run(programs[name]()))
	default:
		names := []string{"etcd", "kubectl", "sandboxes"}
		for n := range programs {
			names = append(names, n)
		}
		fmt.Fprintf(os.Stderr, "%s: link this binary under the name of the program to run: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
}
