package zero

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/golden"
)

// TestScenarios plays testdata/*.txt: blocks of commands, a line ----, and the steps expected.
//
//	config key=value...                                change the configuration
//	begin                                              a revision that is new
//	found active|inactive|activating ago=10s [proxied] [uninitialized]
//	                                                   another process left it so, that long before 0s
//	at 12s desired=N ready=N excess=X [busy=N] [probe=activator|other]
//	                                                   the next step at that time; desired=? is unknown
func TestScenarios(t *testing.T) {
	seen := map[string]bool{}
	golden.Each(t, "testdata/*.txt", func(t *testing.T, file, text string) {
		c, s := config(), State{}
		golden.File(t, file, golden.Blocks(text, func(commands string) string { return play(t, commands, &c, &s, seen) }))
	})
	for _, rule := range []string{RuleMinScale, RuleMaxScale, RuleInitialScale, RuleBusy, RuleNeverZero, RuleActivating, RuleTimedOut,
		RuleStableWindow, RuleHandOver, RuleProbe, RuleRetention, RuleGrace, RuleZero} {
		if !seen[rule] {
			t.Errorf("no scenario shows rule %s", rule)
		}
	}
}

func play(t *testing.T, commands string, c *Config, s *State, seen map[string]bool) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		args := map[string]string{}
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			args[key] = value
		}
		switch words[0] {
		case "begin":
			*s = State{}
		case "config":
			configure(t, c, args)
		case "found":
			ago := duration(t, args["ago"])
			_, fresh := args["uninitialized"]
			_, proxied := args["proxied"]
			*s = State{ActiveSince: epoch.Add(-ago), Initialized: !fresh, Proxied: proxied, ProxiedSince: epoch.Add(-ago)}
			switch words[1] {
			case "active":
				s.Active = Yes
			case "inactive":
				s.Active, s.ActiveReason = No, NoTraffic
			}
		case "at":
			in := Input{Desired: Unknown, Ready: int32(number(t, args["ready"])), Busy: int32(number(t, args["busy"])), ExcessBurst: number(t, args["excess"]),
				Probe: map[string]Probe{"": NotProbed, "activator": ProbedActivator, "other": ProbedOther}[args["probe"]]}
			if args["desired"] != "?" {
				in.Desired = int32(number(t, args["desired"]))
			}
			var step Step
			step, *s = Decide(*c, *s, in, epoch.Add(duration(t, words[1])))
			seen[step.Rule] = true
			fmt.Fprintf(&out, "%s: want %d", words[1], step.Want)
			if step.Apply {
				fmt.Fprintf(&out, ", write %d", step.Replicas)
			}
			if step.Probe {
				out.WriteString(", probe")
			}
			if step.After > 0 {
				fmt.Fprintf(&out, ", again in %s", step.After)
			}
			path := "serve"
			if s.Proxied {
				path = "proxy"
			}
			fmt.Fprintf(&out, "; Active=%s %s", s.Active, path)
			if s.ActiveReason != "" {
				fmt.Fprintf(&out, " (%s)", s.ActiveReason)
			}
			if s.Initialized {
				out.WriteString(" initialized")
			}
			if step.Rule != "" {
				fmt.Fprintf(&out, " [%s] %s", step.Rule, step.Reason)
			}
			out.WriteString("\n")
		default:
			t.Fatalf("unknown command %q", line)
		}
	}
	return out.String()
}

func configure(t *testing.T, c *Config, args map[string]string) {
	t.Helper()
	for key, value := range args {
		switch key {
		case "min":
			c.Min = int32(number(t, value))
		case "max":
			c.Max = int32(number(t, value))
		case "initial":
			c.Initial = int32(number(t, value))
		case "unreachable":
			c.Unreachable = value != "no"
		case "scale-to-zero":
			c.ScaleToZero = value != "no"
		case "always-proxied":
			c.AlwaysProxied = value != "no"
		case "window":
			c.StableWindow = duration(t, value)
		case "grace":
			c.Grace = duration(t, value)
		case "retention":
			c.Retention = duration(t, value)
		case "progress-deadline":
			c.ProgressDeadline = duration(t, value)
		case "path-hold":
			c.PathHold = duration(t, value)
		default:
			t.Fatalf("unknown key %q", key)
		}
	}
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	if text == "" {
		return 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
