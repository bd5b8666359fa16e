# A server for tests of `http`: answers POSTs as say.pl does, or with a score, on a port of its own, which it writes to the file
# PORT. The path of a request says how it misbehaves. It forks for each connection, and ends with its first process.
use strict;
use IO::Socket::INET;
$| = 1;
$SIG{CHLD} = "IGNORE";
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 128, ReuseAddr => 1) or die "no socket: $!";
open(my $f, ">", "PORT.new") or die;
print $f $server->sockport;
close $f;
rename("PORT.new", "PORT");
my $main = $$;
while (1) {
    my $c = $server->accept or next;
    next if fork;
    answer($c) while defined $c && $c->connected;
    exit;
}
sub answer {
    my $c = shift;
    my ($length, $token) = (0, "");
    my $head = <$c>;
    exit unless defined $head && kill(0, $main);
    while (defined(my $line = <$c>)) {
        last if $line !~ /\S/;
        $length = $1 if $line =~ /^content-length: (\d+)/i;
        $token = $1 if $line =~ /^authorization: bearer (\S+)/i;
    }
    read($c, my $body, $length) == $length or exit;
    my ($way) = $head =~ m{^POST /(\S*)};
    my ($id) = $body =~ /"id":(\d+)/;
    my ($status, $reply) = (200, reply($body, $id));
    select(undef, undef, undef, 0.05) if $way =~ /^(late|counted)$/;
    if ($way eq "counted") { open(my $f, ">>", "scored"); print $f "$id\n"; close $f }
    select(undef, undef, undef, rand() / 50) if $way eq "slow";
    if ($way eq "busy" && !-e "busy-$id-" . length $body) {
        open(my $f, ">", "busy-$id-" . length $body);
        ($status, $reply) = (503, "come again");
    }
    $reply = '{"messages":[{"role":"user","content":"go"}],"tools":[{"type":"function","function":{"name":"add"}}]}'
        if $way eq "opens" && $body =~ /"type":"start"/;
    ($status, $reply) = (500, "out of\norder") if $way eq "broken" && $body =~ /"turn":1|"response"/;
    $reply = "<html>" if $way eq "garbage" && $body =~ /"turn":1/;
    $reply = "[]" if $way eq "list" && $body =~ /"turn":1/;
    $reply =~ s/^\{/{"id":99999999,/ if $way eq "other" && $body =~ /"turn":1/;
    $reply = "{\"text\":\"" . "+" x 10000000 . "\"}" if $way eq "large" && $body =~ /"turn":1/;
    if ($way eq "hang" && $body =~ /"turn":1/ && $id % 2) { select(undef, undef, undef, 0.1) while kill(0, $main) }
    exit if $way eq "gone" && $body =~ /"turn":1/;
    ($status, $reply) = (401, "who are you") if $way eq "token" && $token ne "secret";
    ($status, $reply) = (404, "") if $way eq "nothing";
    print $c "HTTP/1.1 $status x\r\nContent-Length: ", length $reply, "\r\n\r\n", $reply or exit;
}
sub reply {
    my ($body, $id) = @_;
    if ($body =~ /"response":"([^"]*)"/) {
        my $response = $1;
        return sprintf "{\"id\":%d,\"score\":%d}", $id, $response =~ tr/0-9//;
    }
    return "" if $body =~ /"type":"(start|end)"/;
    my ($ids) = $body =~ /"token_ids":\[([^]]*)\]/;
    my ($turn) = $body =~ /"turn":(\d+)/;
    my ($text) = $body =~ /"text":"([^"]*)"/;
    my $n = () = $ids =~ /\d+/g;
    my $done = $turn && $text =~ /3/ ? "true" : "false";
    return sprintf "{\"text\":\"+%d=\",\"done\":%s,\"reward\":%g,\"metrics\":{\"calls\":1}}", $n, $done, $n / 10;
}
