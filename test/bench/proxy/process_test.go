package main

import (
	"fmt"
	"os"
	"testing"
)

func TestNoPortIsHandedOutTwiceNorChosenByTheSystem(t *testing.T) {
	from, to := 32768, 60999
	data, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	fmt.Sscan(string(data), &from, &to)
	seen := map[int]bool{}
	for range 100 {
		p := freePort()
		if p == 0 || seen[p] || p >= from && p <= to {
			t.Fatalf("port %d (returned before: %t), the system's range is %d to %d", p, seen[p], from, to)
		}
		seen[p] = true
	}
}

func TestPortsOutsideOfTheSystemsRange(t *testing.T) {
	for chosen, want := range map[string]string{
		"32768\t60999\n": "10000 20000",
		"1024 40000":     "40001 25535",
		"20000 65535":    "10000 10000",
		"":               "10000 20000",
	} {
		if low, size := outside(chosen); fmt.Sprint(low, " ", size) != want {
			t.Errorf("%q: got %d and %d of them, want %s", chosen, low, size, want)
		}
	}
}
