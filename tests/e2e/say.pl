# An environment for tests: answers each turn with "+N=", N the number of the turn's tokens, pays a tenth a token, and is done
# where the model writes a 3 after its first turn. What it is asked is added to the file ASKED. Its argument is a way to
# misbehave, or to answer otherwise: messages, slow, die, die-always, hang, lie, large; gate: it lets a conversation end only
# where at most 100 others that have ended have no line in the file `scored`; last: nothing ends a conversation but its last turn, and
# that of none is answered before all of so many are asked (the second argument); die-last: one dies where it is asked such a turn.
use strict;
use Fcntl;
$| = 1;
my $way = shift // "";
my $ended = 0;
my ($all, @last) = $ARGV[0] // 0;
sub lines {
    open(my $f, "<", shift) or return 0;
    my $n = 0;
    $n++ while <$f>;
    return $n;
}
while (my $line = <STDIN>) {
    my ($id) = $line =~ /"id":(\d+)/;
    if ($line =~ /"type":"start"/) { print "{\"id\":$id}\n"; next }
    if ($line =~ /"type":"end"/) { next }
    my ($ids) = $line =~ /"token_ids":\[([^]]*)\]/;
    my ($turn) = $line =~ /"turn":(\d+)/;
    my ($text) = $line =~ /"text":"([^"]*)"/;
    my $n = () = $ids =~ /\d+/g;
    if ($ENV{ASKED}) { open(my $log, ">>", $ENV{ASKED}); print $log $line; close $log }
    select(undef, undef, undef, rand() / 50) if $way eq "slow";
    exit 3 if $way eq "die" && sysopen(my $f, "died", O_WRONLY | O_CREAT | O_EXCL); # one of several processes
    exit 3 if $way eq "die-always" && $turn == 1;
    sleep 100 if $way eq "hang" && $turn == 1;
    print "{\"id\":", $id + 1, "}\n" if $way eq "lie" && $turn == 1;
    print "{\"id\":$id,\"text\":\"", "+" x 10000000, "\"}\n" if $way eq "large" && $turn == 1;
    next if $way =~ /lie|large/ && $turn == 1;
    if ($way eq "messages") {
        print "{\"id\":$id,\"reward\":", $n / 10, ",\"messages\":[{\"role\":\"tool\",\"content\":\"+$n\"},{\"role\":\"user\",\"content\":\"?E\"}]}\n";
        next;
    }
    my $done = $turn && $text =~ /3/ && $way !~ /last/ ? "true" : "false";
    exit 3 if $way eq "die-last" && $line =~ /"last":true/ && sysopen(my $f, "died", O_WRONLY | O_CREAT | O_EXCL);
    if ($way eq "gate" && ($done eq "true" || $line =~ /"last":true/)) {
        $ended++;
        select(undef, undef, undef, 0.01) while $ended > 100 + lines("scored");
    }
    push @last, sprintf "{\"id\":%d,\"text\":\"+%d=\",\"done\":%s,\"reward\":%g,\"metrics\":{\"calls\":1}}\n", $id, $n, $done, $n / 10;
    next if $way eq "last" && $line =~ /"last":true/ && ++$ended % ($all || 1);
    print $way eq "last" && $line !~ /"last":true/ ? pop @last : splice(@last);
}
