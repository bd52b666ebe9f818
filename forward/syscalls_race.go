//go:build race

package forward

import "syscall"

// The race detector has to see reads and writes: it takes what one side did before a write for done
// before the other side's read.

func readNow(fd uintptr, b []byte) (int, syscall.Errno) { return resultOf(syscall.Read(int(fd), b)) }

func writeNow(fd uintptr, b []byte) (int, syscall.Errno) { return resultOf(syscall.Write(int(fd), b)) }

func resultOf(n int, err error) (int, syscall.Errno) {
	if err == nil {
		return n, 0
	}
	errno, ok := err.(syscall.Errno)
	if !ok {
		errno = syscall.EIO
	}
	return 0, errno
}
