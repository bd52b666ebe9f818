// Package version knows which version of Ebb a program is.
//
// Owns: the version, which the linker sets in a release. Reads: the arguments, for --version.
// Writes: one line. Never: asks anybody else.
package version

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Version is a release's, such as v0.1.0, or devel. `make release` sets it with -ldflags -X.
var Version = "devel"

// Answer ends the process if it was started only to tell its version.
func Answer() {
	if asked(os.Args, os.Stdout) {
		os.Exit(0)
	}
}

// asked answers --version: it reports whether that is the only argument, and then prints the
// program's name and version, Go's version and the platform.
func asked(args []string, out io.Writer) bool {
	if len(args) != 2 || args[1] != "--version" && args[1] != "-version" {
		return false
	}
	fmt.Fprintf(out, "%s %s (%s, %s/%s)\n", filepath.Base(args[0]), Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return true
}
