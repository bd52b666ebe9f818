package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// install copies this program to dir/shim, whole or not at all.
func install(dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("install the shim in %s: %w", dir, err)
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, ".shim-")
	if err != nil {
		return err
	}
	defer os.Remove(to.Name()) // fails if it has its final name
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), filepath.Join(dir, "shim"))
}
