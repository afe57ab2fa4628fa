// Package sartordatalet serves a store of yours to Sartor: the protocol of datalet.proto.
//
// Calls come one at a time. Slices that are handed over are yours to keep. An error is told to Sartor, whose replica then
// steps back and is filled again from the others.
package sartordatalet

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"datalet/pb"

	"google.golang.org/protobuf/proto"
)

const (
	version       = 1
	frameBytesMax = 64 << 20
)

// Capabilities are what a store is; see datalet.proto.
type Capabilities struct {
	Name                       string
	Ordered, Durable           bool
	KeyBytesMax, ValueBytesMax uint64
}

// Datalet is a store. Keys and values are bytes of any kind.
type Datalet interface {
	Capabilities() Capabilities
	// Get returns the value of key, and whether it has one.
	Get(key []byte) ([]byte, bool, error)
	// Put sets key, whether it is there or not.
	Put(key, value []byte) error
	// Delete removes key; that it is not there is fine.
	Delete(key []byte) error
	// Walk yields pairs from behind the key `after` on, or from the start, in an order that stays. A pair that is there
	// during the whole walk must be seen, whatever is written between two calls.
	Walk(after []byte, start bool) iter.Seq2[[]byte, []byte]
	Len() (uint64, error)
	Clear() error
}

// Scanner is a store that is ordered: its walks are in key order too, and see what is put behind their place.
type Scanner interface {
	// Scan yields pairs with start <= key < end, or to the last, in key order.
	Scan(start, end []byte, toLast bool) iter.Seq2[[]byte, []byte]
}

// Committer is a store that is durable.
type Committer interface {
	Commit(mark []byte, durably bool) error
	Mark() ([]byte, bool, error)
}

type server struct {
	store      Datalet
	mutex      sync.Mutex // Who holds it does a batch.
	owner      uint64
	current    net.Conn // The owner's.
	generation uint64
}

// Main serves at the address that the command line names.
func Main(store Datalet) {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatalf("usage: %s HOST:PORT, or /PATH/OF/SOCKET", os.Args[0])
	}
	log.Fatal(Serve(store, os.Args[1]))
}

// Serve serves at HOST:PORT, or at the path of a Unix socket, until it cannot listen any more.
func Serve(store Datalet, address string) error {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
		if info, err := os.Stat(address); err == nil && info.Mode()&os.ModeSocket != 0 {
			os.Remove(address) // A process that is no more left it.
		}
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	s := &server{store: store, generation: newGeneration()}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := s.attend(conn); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				log.Printf("a connection ends: %v", err)
			}
		}()
	}
}

// attend answers the batches of a connection.
func (s *server) attend(conn net.Conn) error {
	// Who does not say hello, or does not read what it asked for, does not stay.
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		size := binary.LittleEndian.Uint32(head[:])
		if size > frameBytesMax {
			return fmt.Errorf("a frame of %d bytes; is that Sartor?", size)
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(conn, message); err != nil {
			return err
		}
		batch := &pb.Batch{}
		if err := proto.Unmarshal(message, batch); err != nil {
			return err
		}
		frame, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4, 512), s.answer(conn, batch))
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint32(frame, uint32(len(frame)-4))
		conn.SetReadDeadline(time.Time{})
		conn.SetWriteDeadline(time.Now().Add(30 * time.Second))
		if _, err := conn.Write(frame); err != nil {
			return err
		}
	}
}

func (s *server) answer(conn net.Conn, batch *pb.Batch) *pb.Results {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	results, size := &pb.Results{}, 0
	for _, operation := range batch.Operations {
		result, added, err := s.do(conn, operation)
		if err != nil {
			result = &pb.Result{Result: &pb.Result_Error{Error: err.Error()}}
		}
		results.Results = append(results.Results, result)
		size += added
		if err != nil || (batch.BytesMax > 0 && uint64(size) >= batch.BytesMax) {
			break
		}
	}
	results.Generation = s.generation
	return results
}

// do returns a result, and how many bytes of keys and values it has.
func (s *server) do(conn net.Conn, operation *pb.Operation) (*pb.Result, int, error) {
	if hello := operation.GetHello(); hello != nil {
		return s.hello(conn, hello), 0, nil
	}
	if s.current != conn {
		return nil, 0, errors.New("say hello first; has another owner come?")
	}
	done := &pb.Result{Result: &pb.Result_Done{Done: &pb.Nothing{}}}
	switch o := operation.Operation.(type) {
	case *pb.Operation_Get:
		return found(s.store.Get(o.Get))
	case *pb.Operation_Put:
		return done, 0, s.store.Put(o.Put.Key, o.Put.Value)
	case *pb.Operation_Delete:
		return done, 0, s.store.Delete(o.Delete)
	case *pb.Operation_Walk:
		w := o.Walk
		return page(s.store.Walk(w.After, w.After == nil), w.PairsMax, w.BytesMax)
	case *pb.Operation_Len:
		count, err := s.store.Len()
		return &pb.Result{Result: &pb.Result_Count{Count: count}}, 0, err
	case *pb.Operation_Clear:
		return done, 0, s.store.Clear()
	case *pb.Operation_Scan:
		if scanner, ok := s.store.(Scanner); ok {
			return page(scanner.Scan(o.Scan.Start, o.Scan.End, o.Scan.End == nil), o.Scan.PairsMax, o.Scan.BytesMax)
		}
	case *pb.Operation_Commit:
		if committer, ok := s.store.(Committer); ok {
			return done, 0, committer.Commit(o.Commit.Mark, o.Commit.Durably)
		}
	case *pb.Operation_Mark:
		if committer, ok := s.store.(Committer); ok {
			return found(committer.Mark())
		}
	}
	return nil, 0, fmt.Errorf("this store does not do that: %v", operation)
}

// hello makes the connection the owner's. Another owner cannot rely on what the one before knew, nor the other way round.
func (s *server) hello(conn net.Conn, hello *pb.Hello) *pb.Result {
	if s.current != nil && s.current != conn {
		s.current.Close()
	}
	s.current = conn
	if s.owner != hello.Owner {
		s.owner, s.generation = hello.Owner, newGeneration()
	}
	c := s.store.Capabilities()
	return &pb.Result{Result: &pb.Result_Capabilities{Capabilities: &pb.Capabilities{
		Version: version, Name: c.Name, Ordered: c.Ordered, Durable: c.Durable,
		KeyBytesMax: c.KeyBytesMax, ValueBytesMax: c.ValueBytesMax,
	}}}
}

func found(value []byte, is bool, err error) (*pb.Result, int, error) {
	if !is {
		return &pb.Result{Result: &pb.Result_Nothing{Nothing: &pb.Nothing{}}}, 0, err
	}
	return &pb.Result{Result: &pb.Result_Value{Value: value}}, len(value), err
}

// page takes as many pairs as a page holds, and looks at one more to see whether it is the last page.
func page(pairs iter.Seq2[[]byte, []byte], pairsMax, bytesMax uint64) (*pb.Result, int, error) {
	page, size := &pb.Pairs{}, 0
	for key, value := range pairs {
		if count := len(page.Pairs); count > 0 && (uint64(count) >= pairsMax || uint64(size) >= bytesMax) {
			page.Next = page.Pairs[count-1].Key
			if page.Next == nil {
				page.Next = []byte{}
			}
			break
		}
		page.Pairs = append(page.Pairs, &pb.Pair{Key: key, Value: value})
		size += len(key) + len(value)
	}
	return &pb.Result{Result: &pb.Result_Pairs{Pairs: page}}, size, nil
}

func newGeneration() uint64 {
	var bytes [8]byte
	rand.Read(bytes[:])
	return binary.LittleEndian.Uint64(bytes[:])>>1 + 1
}
