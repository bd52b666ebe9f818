package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"ebb.dev/ebb/kubectl-ebb/migrate"
)

func (p *program) migrateCommand() *cobra.Command {
	var check, apply, back bool
	var places []string
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Move an installation of Knative Serving to Ebb in place, and back",
		Long: `Move an installation of Knative Serving to Ebb in place, and back.

--check changes nothing. It says what is there, what Ebb does not have, and what stands in the way;
the exit status is 1 if something does. --apply checks and moves, in steps. Run it again if it was
interrupted: it goes on where it was. --rollback gives the installation back to Knative, from any
step and after the last.

Services go on answering meanwhile, and no pod of theirs is restarted. You need the rights of an
administrator of the cluster.`,
		Example: `  kubectl ebb migrate --check --manifests ebb-crds.yaml,ebb.yaml
  kubectl ebb migrate --apply --manifests ebb-crds.yaml,ebb.yaml
  kubectl ebb migrate --rollback`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !check && !apply && !back {
				return errors.New("say --check, --apply or --rollback")
			}
			config, err := p.flags.ToRESTConfig()
			if err != nil {
				return err
			}
			cluster, err := migrate.Connect(config)
			if err != nil {
				return err
			}
			m := &migrate.Move{Cluster: cluster, Out: p.out}
			if back {
				return m.Rollback(c.Context())
			}
			if len(places) == 0 {
				return errors.New("name the manifests of Ebb that are to be installed, such as --manifests ebb-crds.yaml,ebb.yaml")
			}
			if m.Manifests, err = migrate.Read(c.Context(), places); err != nil {
				return err
			}
			if err := p.checkMove(c, m, apply); err != nil || check {
				return err
			}
			return m.Apply(c.Context())
		},
	}
	c.Flags().BoolVar(&check, "check", false, "say what is there and what stands in the way, and change nothing")
	c.Flags().BoolVar(&apply, "apply", false, "move to Ebb, or go on with it")
	c.Flags().BoolVar(&back, "rollback", false, "go back to Knative")
	c.Flags().StringSliceVar(&places, "manifests", nil, "files or URLs with the manifests of Ebb, definitions of kinds included")
	c.MarkFlagsMutuallyExclusive("check", "apply", "rollback")
	p.addOutput(c)
	return c
}

// checkMove says what stands in the way of a move. With quiet it says only that.
func (p *program) checkMove(c *cobra.Command, m *migrate.Move, quiet bool) error {
	inventory, err := m.Look(c.Context())
	if err != nil {
		return err
	}
	var findings []finding
	for _, f := range inventory.Findings() {
		findings = append(findings, finding{f.About, state(f.State), f.Text, f.Do})
	}
	stands := false
	for _, f := range findings {
		stands = stands || f.State == broken
	}
	switch {
	case quiet && !stands:
		return nil
	case p.output == "json":
		err = writeJSON(p.out, findings)
	default:
		if err = writeFindings(p.out, findings); err == nil && !stands {
			_, err = fmt.Fprintln(p.out, "The installation can be moved: kubectl ebb migrate --apply")
		}
	}
	if err == nil && stands {
		err = errBroken
	}
	return err
}
