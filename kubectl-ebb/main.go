// Command kubectl-ebb is the plugin `kubectl ebb`. It tells how many pods a Service has and why,
// how the Services of a namespace do, where the time of cold starts and of a request went, and what
// is wrong with an installation.
//
// Reads: objects of the API server, with the rights of whoever calls it. Writes: an annotation with
// `rollout promote` and `back`, else nothing; `check` makes a dry run, `trace` sends one request to
// a Service. Never: guesses what it may not read.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"ebb.dev/ebb/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	root := newCommand(os.Stdout, time.Now)
	// kubectl asks a program of this name for completions.
	if filepath.Base(os.Args[0]) == "kubectl_complete-ebb" {
		root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, os.Args[1:]...))
	}
	if err := root.ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errBroken) { // the report has said it
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		os.Exit(1)
	}
}

// program is what all commands share.
type program struct {
	flags *genericclioptions.ConfigFlags
	out   io.Writer
	now   func() time.Time
	// output is "" or "json".
	output string
}

func newCommand(out io.Writer, now func() time.Time) *cobra.Command {
	p := &program{flags: genericclioptions.NewConfigFlags(true), out: out, now: now}
	root := &cobra.Command{
		Use:   "kubectl-ebb",
		Short: "Show what Ebb does with your Services, and why",
		Long: `kubectl ebb shows what Ebb does with your Services, and why.

It reads objects of the API server with your own rights, and changes nothing but with migrate and
rollout. Only trace sends a request to a Service.`,
		Example: `  kubectl ebb explain hello    # why hello has as many pods as it has
  kubectl ebb top -A -w        # load and pods of all Services, live
  kubectl ebb coldstarts hello # where the time of its cold starts went
  kubectl ebb calls hello      # its newest asynchronous calls, and all if you ask for it
  kubectl ebb trace hello      # who had a request, when and why
  kubectl ebb rollout status hello # who gets its requests, and what the judge of a rollout says
  kubectl ebb check            # what is wrong with the installation, and what to do
  kubectl ebb dashboard        # a page that shows all of this
  kubectl ebb migrate --check  # whether an installation of Knative Serving can become Ebb`,
		Version:       version.Version,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ebb"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	p.flags.AddFlags(root.PersistentFlags())
	// All of kubectl's flags work. The help shows those that people use.
	shown := []string{"kubeconfig", "context", "namespace", "as"}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shown, f.Name) })
	root.AddCommand(p.explainCommand(), p.topCommand(), p.coldStartsCommand(), p.callsCommand(), p.traceCommand(), p.rolloutCommand(), p.checkCommand(), p.dashboardCommand(), p.migrateCommand())
	root.RegisterFlagCompletionFunc("namespace", p.completeNamespaces)
	return root
}

// addOutput adds the flag -o to a command.
func (p *program) addOutput(c *cobra.Command) {
	c.Flags().StringVarP(&p.output, "output", "o", "", `"json" for programs`)
	c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp))
	c.PreRunE = func(*cobra.Command, []string) error {
		if p.output != "" && p.output != "json" {
			return fmt.Errorf("-o %s: the only output besides text is json", p.output)
		}
		return nil
	}
}
