//go:build linux

package settle

import (
	"syscall"
	"time"
)

// unmap forgets where the pages of a region are; the next access asks the page cache.
func unmap(r region) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, r.from, r.to-r.from, syscall.MADV_DONTNEED); errno != 0 {
		return errno
	}
	return nil
}

// processorTime is what the process has used since its start.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
