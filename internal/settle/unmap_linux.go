package settle

import "syscall"

// unmap forgets where the pages of a region are; the next access asks the page cache.
func unmap(r region) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, r.from, r.to-r.from, syscall.MADV_DONTNEED); errno != 0 {
		return errno
	}
	return nil
}
