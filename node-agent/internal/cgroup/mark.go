package cgroup

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// frozenByUs is an attribute of the cgroup of a container that an agent froze. It goes with the
// cgroup, and the next agent and the guard read it.
const frozenByUs = "user.ebb.frozen"

// mark is set before a container is frozen. A kernel that has no such attributes has no marks.
func (t *Tree) mark(dir string) error {
	return t.attribute(dir, func(fd int) error {
		if err := unix.Fsetxattr(fd, frozenByUs, []byte("1"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("mark %s: %w", dir, gone(err))
		}
		return nil
	})
}

// marked reports whether an agent froze a container, or may have: the error of doubt is to thaw.
func (t *Tree) marked(dir string) bool {
	err := t.attribute(dir, func(fd int) error {
		_, err := unix.Fgetxattr(fd, frozenByUs, nil)
		return err
	})
	return !errors.Is(err, unix.ENODATA)
}

// unmark is done after a container was thawed. A mark that stays does no harm: it is removed with
// the next thaw.
func (t *Tree) unmark(dir string) {
	_ = t.attribute(dir, func(fd int) error { return unix.Fremovexattr(fd, frozenByUs) })
}

func (t *Tree) attribute(dir string, do func(fd int) error) error {
	folder, err := t.freezer.Open(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, gone(err))
	}
	defer folder.Close()
	return do(int(folder.Fd()))
}
