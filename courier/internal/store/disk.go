package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// disk lets callers wait until what JetStream has acknowledged is on the disk. JetStream can sync
// each message by itself (sync_interval: always), one after another. Here all callers that wait
// share one sync.
type disk struct {
	folders []*folder
	ask     chan chan error
}

// folder holds the files of a stream, numbered. JetStream appends to the last one.
type folder struct {
	path string
	last int // the number of the last file that was synced
}

func newDisk(paths ...string) *disk {
	d := &disk{ask: make(chan chan error)}
	for _, path := range paths {
		d.folders = append(d.folders, &folder{path: path})
	}
	go d.run()
	return d
}

// sync returns when everything that was written before is on the disk.
func (d *disk) sync(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case d.ask <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *disk) run() {
	for first := range d.ask {
		waiting := []chan error{first}
		for more := true; more; {
			select {
			case one := <-d.ask:
				waiting = append(waiting, one)
			default:
				more = false
			}
		}
		var err error
		for _, f := range d.folders {
			err = errors.Join(err, f.sync())
		}
		for _, done := range waiting {
			done <- err
		}
	}
}

// sync writes the file that was the last one and those that are newer.
func (f *folder) sync() error {
	names, err := os.ReadDir(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	newest := f.last
	for _, name := range names {
		text, isBlock := strings.CutSuffix(name.Name(), ".blk")
		number, err := strconv.Atoi(text)
		if !isBlock || err != nil || number < f.last {
			continue
		}
		if err := syncFile(filepath.Join(f.path, name.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // one that is gone has no message that is still needed
		}
		newest = max(newest, number)
	}
	if newest != f.last { // the name of a new file is on the disk with its folder
		if err := syncFile(f.path); err != nil {
			return err
		}
		f.last = newest
	}
	return nil
}

func syncFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
