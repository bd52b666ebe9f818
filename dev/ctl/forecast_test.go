package main

import (
	"strings"
	"testing"
	"time"
)

func TestTheForecastFollowsWhatIsToBeBuilt(t *testing.T) {
	disk := map[string]uint64{"/b": 3 * gib, "/a": 2 * gib}
	for name, c := range map[string]struct {
		forecast      forecast
		atLeast, most time.Duration
		says          []string
	}{
		"nothing built": {
			forecast{cpus: 2, build: folders(&parts{gateway: istio}), disk: disk}, 5 * time.Minute, 20 * time.Minute,
			[]string{"min on 2 idle CPUs", "kube, dns, istio", "5.0 GiB of disk: 2.0 GiB in /a, 3.0 GiB in /b"},
		},
		"only what tests need": {
			forecast{cpus: 2, build: []string{"metrics", "certmanager"}}, start, 5 * time.Minute, []string{"metrics, certmanager"},
		},
		"all built":       {forecast{cpus: 2, disk: disk}, start, start, []string{"about 1 min"}},
		"three nodes":     {forecast{cpus: 2, nodes: 2, disk: disk}, start + time.Second, 3 * start, []string{"about 2 min"}},
		"already running": {forecast{cpus: 2, running: true, images: "/dev", free: 9 * gib}, time.Second, 30 * time.Second, []string{"brought up to date", "10 s", "; /dev has 9.0 GiB free"}},
	} {
		if takes := c.forecast.takes(); takes < c.atLeast || takes > c.most {
			t.Errorf("%s: takes %s, want %s to %s", name, takes, c.atLeast, c.most)
		}
		for _, text := range c.says {
			if said := c.forecast.String(); !strings.Contains(said, text) {
				t.Errorf("%s: %q does not say %q", name, said, text)
			}
		}
	}
	if one, two := (forecast{cpus: 1, build: folders(&parts{gateway: istio})}), (forecast{cpus: 2, build: folders(&parts{gateway: istio})}); one.takes() <= two.takes() {
		t.Error("a second CPU saves no time")
	}
	for _, folder := range folders(&parts{gateway: istio, all: true, monitoring: true}) {
		if buildCPU[folder] == 0 {
			t.Errorf("nobody has measured how long %s takes", folder)
		}
	}
}
