package forward

// chunkScanner follows a chunked body (RFC 9112 section 7.1) byte by byte, so that the body can be
// passed on unchanged. It finds the end, and rejects everything that another parser might read
// differently.
type chunkScanner struct {
	state  chunkState
	left   uint64 // data bytes of the current chunk still to come
	digits int
	quoted bool // within a quoted string of an extension
	extra  int  // bytes of extensions and trailers seen, bounded
	name   [20]byte
	nameN  int
}

// chunkState is what the next byte is to be.
type chunkState uint8

// The way of a body: sizes lead to data and back, until a chunk has none. Then come trailers, each
// on a line, and an empty line.
const (
	chunkSize      chunkState = iota // a hexadecimal digit; after one also CR or the ";" of extensions
	chunkExtension                   // of an extension, up to a CR that is not quoted
	chunkSizeLF                      // the LF after a size: then data, or trailers after size 0
	chunkData                        // data, as many bytes as left
	chunkDataCR
	chunkDataLF  // then the next size
	trailerStart // the first of a trailer's name, or the CR of the empty line
	trailerName  // of a name, or ":"
	trailerValue // of a value, or CR
	trailerLF    // then trailerStart
	chunkFinalLF
	chunkDone // of no part of this body
)

// The limit for the chunk extensions and trailers of one body.
const maxChunkExtra = 16 << 10

func (s *chunkScanner) reset() { *s = chunkScanner{} }

// step consumes one piece of b: either framing (data false) or chunk data. It stops at the body's
// end.
func (s *chunkScanner) step(b []byte) (n int, data bool, err error) {
	if s.state == chunkData {
		if uint64(len(b)) >= s.left {
			n = int(s.left)
			s.state = chunkDataCR
		} else {
			n = len(b)
		}
		s.left -= uint64(n)
		return n, true, nil
	}
	for n < len(b) {
		c := b[n]
		n++
		switch s.state {
		case chunkSize:
			switch {
			case isHex(c):
				if s.digits++; s.digits > 15 {
					return n, false, errChunk
				}
				s.left = s.left<<4 | uint64(unhex(c))
			case s.digits == 0:
				return n, false, errChunk
			case c == '\r':
				s.state = chunkSizeLF
			case c == ';':
				s.state = chunkExtension
			default:
				return n, false, errChunk
			}
		case chunkExtension:
			if s.extra++; s.extra > maxChunkExtra {
				return n, false, errChunk
			}
			switch {
			case c == '"':
				s.quoted = !s.quoted
			case c == '\r' && !s.quoted:
				s.state = chunkSizeLF
			case class[c]&valueChar == 0, c == '\\': // after a backslash, parsers differ about where a quote ends
				return n, false, errChunk
			}
		case chunkSizeLF:
			if c != '\n' {
				return n, false, errChunk
			}
			s.digits = 0
			if s.left == 0 {
				s.state = trailerStart
				return n, false, nil
			}
			s.state = chunkData
			return n, false, nil
		case chunkDataCR:
			if c != '\r' {
				return n, false, errChunk
			}
			s.state = chunkDataLF
		case chunkDataLF:
			if c != '\n' {
				return n, false, errChunk
			}
			s.state = chunkSize
		case trailerStart:
			if c == '\r' {
				s.state = chunkFinalLF
				continue
			}
			s.state, s.nameN = trailerName, 0
			fallthrough
		case trailerName:
			if s.extra++; s.extra > maxChunkExtra {
				return n, false, errChunk
			}
			if c == ':' {
				// A trailer with framing or routing fields attacks a recipient that merges it into
				// the head.
				name := s.name[:min(s.nameN, len(s.name))]
				switch id := identify(name); {
				case s.nameN == 0, id == hostHeader, id == contentLengthHeader, id == transferEncodingHeader:
					return n, false, errChunk
				}
				s.state = trailerValue
				continue
			}
			if class[c]&tokenChar == 0 {
				return n, false, errChunk
			}
			if s.nameN < len(s.name) {
				s.name[s.nameN] = c
			}
			s.nameN++
		case trailerValue:
			if s.extra++; s.extra > maxChunkExtra {
				return n, false, errChunk
			}
			if c == '\r' {
				s.state = trailerLF
			} else if class[c]&valueChar == 0 {
				return n, false, errChunk
			}
		case trailerLF:
			if c != '\n' {
				return n, false, errChunk
			}
			s.state = trailerStart
		case chunkFinalLF:
			if c != '\n' {
				return n, false, errChunk
			}
			s.state = chunkDone
			return n, false, nil
		case chunkDone:
			return n - 1, false, nil
		}
	}
	return n, false, nil
}

// scan consumes as much of b as belongs to the body.
func (s *chunkScanner) scan(b []byte) (n int, err error) {
	for n < len(b) && s.state != chunkDone {
		k, _, err := s.step(b[n:])
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// between reports whether the last chunk is complete and nothing of the next one has arrived.
func (s *chunkScanner) between() bool { return s.state == chunkSize && s.digits == 0 }

// squeeze takes a valid piece of the body apart, in place. data is the content of its chunks, tail
// is what follows the line of the last chunk, and last says that this line was in the piece.
func (s *chunkScanner) squeeze(b []byte) (data, tail []byte, last bool) {
	kept := 0
	for n := 0; n < len(b) && !s.done(); {
		if s.state >= trailerStart {
			k, _ := s.scan(b[n:])
			return b[:kept], b[n : n+k], last
		}
		k, isData, _ := s.step(b[n:])
		if isData {
			kept += copy(b[kept:], b[n:n+k])
		}
		n += k
		last = s.state == trailerStart
	}
	return b[:kept], nil, last
}

func (s *chunkScanner) done() bool { return s.state == chunkDone }

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}
