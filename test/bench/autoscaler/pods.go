package main

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"

	"ebb.dev/ebb/wire"
)

// pods answers scrapes like the stats port of every pod, on one thread and with two system calls
// for each scrape. The generator shares the CPUs with the autoscaler, so it uses as little CPU as
// possible.
type pods struct {
	perRevision     int
	listener, epoll int
	// replies holds the response of each connection's pod, by descriptor; heads the first part of a
	// request that arrived in pieces.
	replies map[int][]byte
	heads   map[int][]byte
	scrapes atomic.Int64
	closed  atomic.Bool
}

func newPods(perRevision int) (*pods, error) {
	p := &pods{perRevision: perRevision, replies: map[int][]byte{}, heads: map[int][]byte{}}
	var err error
	if p.listener, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open the pods' socket: %w", err)
	}
	if err := errors.Join(syscall.SetsockoptInt(p.listener, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.Bind(p.listener, &syscall.SockaddrInet4{Port: scrapePort}), syscall.Listen(p.listener, 4096)); err != nil {
		return nil, fmt.Errorf("listen for scrapes on port %d: %w", scrapePort, err)
	}
	if p.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("poll the pods' sockets: %w", err)
	}
	return p, p.watch(p.listener)
}

func (p *pods) watch(fd int) error {
	return syscall.EpollCtl(p.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)})
}

func (p *pods) close() { p.closed.Store(true) }

// answer serves scrapes until close.
func (p *pods) answer() {
	runtime.LockOSThread()
	events := make([]syscall.EpollEvent, 512)
	chunk := make([]byte, 4096)
	for !p.closed.Load() {
		n, err := syscall.EpollWait(p.epoll, events, 100)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if fd := int(e.Fd); fd == p.listener {
				p.accept()
			} else {
				p.serve(fd, chunk)
			}
		}
	}
}

func (p *pods) accept() {
	for {
		fd, _, err := syscall.Accept4(p.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		// The local address of a connection tells its pod.
		address, err := syscall.Getsockname(fd)
		local, ok := address.(*syscall.SockaddrInet4)
		if err != nil || !ok || number(local.Addr) < 0 || p.watch(fd) != nil {
			syscall.Close(fd)
			continue
		}
		n := number(local.Addr)
		stat := wire.Stat{PodName: podName(n/p.perRevision, n%p.perRevision), AverageConcurrent: perPod, Requests: perPod, ProcessUptime: 3600, Completed: perPod, BusySeconds: perPod}.Append(nil)
		p.replies[fd] = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/protobuf\r\nContent-Length: %d\r\n\r\n%s", len(stat), stat)
	}
}

func (p *pods) serve(fd int, chunk []byte) {
	n, err := syscall.Read(fd, chunk)
	if errors.Is(err, syscall.EAGAIN) {
		return
	}
	if n <= 0 {
		delete(p.replies, fd)
		delete(p.heads, fd)
		syscall.Close(fd)
		return
	}
	head := chunk[:n]
	if earlier := p.heads[fd]; earlier != nil {
		head = append(earlier, head...)
	}
	if !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		p.heads[fd] = bytes.Clone(head)
		return
	}
	delete(p.heads, fd)
	p.scrapes.Add(1)
	if _, err := syscall.Write(fd, p.replies[fd]); err != nil {
		delete(p.replies, fd)
		syscall.Close(fd)
	}
}
