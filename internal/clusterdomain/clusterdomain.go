// Package clusterdomain finds the domain of the cluster that a process runs in.
//
// Owns: nothing. Reads: the resolver's configuration. Never: asks a name server. Only package
// component asks it, so that all of a cluster's processes have the same answer.
package clusterdomain

import (
	"bufio"
	"io"
	"os"
	"strings"
)

// Default is the domain of a cluster whose resolver configuration does not say otherwise.
const Default = "cluster.local"

// Read returns the cluster's domain by /etc/resolv.conf, or otherwise if that has none.
func Read(otherwise string) string {
	file, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return otherwise
	}
	defer file.Close()
	return Parse(file, otherwise)
}

// Parse returns what follows "svc." in the search list of a resolver configuration, or otherwise if
// nothing does.
func Parse(configuration io.Reader, otherwise string) string {
	lines := bufio.NewScanner(configuration)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] != "search" {
			continue
		}
		for _, word := range words[1:] {
			if domain, found := strings.CutPrefix(strings.TrimSuffix(word, "."), "svc."); found && domain != "" {
				return domain
			}
		}
	}
	return otherwise
}
